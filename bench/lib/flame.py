"""Flame graphs as SVG, from folded stacks (`outer;inner;innermost count` lines)."""

from __future__ import annotations

import html
import zlib

WIDTH, ROW, TOP, LEAST = 1400, 16, 40, 0.5  # pixels; frames narrower than the last are left out
CHARACTER = 6.6


class Frame:
    def __init__(self):
        self.count = 0
        self.inner: dict[str, Frame] = {}


def tree(folded: str) -> Frame:
    root = Frame()
    for line in folded.splitlines():
        stack, _, count = line.rpartition(" ")
        frame = root
        frame.count += int(count)
        for name in stack.split(";"):
            frame = frame.inner.setdefault(name, Frame())
            frame.count += int(count)
    return root


def depth(frame: Frame) -> int:
    return 1 + max(map(depth, frame.inner.values())) if frame.inner else 0


def colour(name: str) -> str:
    """mixedcc's frames blue, PostgreSQL's orange; shades tell neighbours apart."""
    shade = zlib.crc32(name.encode()) % 40
    return f"hsl(210,70%,{55 + shade // 2}%)" if "mixedcc" in name else f"hsl({20 + shade},80%,62%)"


def svg(folded: str, title: str) -> str:
    root = tree(folded)
    levels = depth(root)
    height = TOP + (levels + 1) * ROW
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace" '
             'font-size="11"><rect width="100%" height="100%" fill="white"/>',
             f'<text x="{WIDTH / 2}" y="22" text-anchor="middle" font-size="15">{html.escape(title)}</text>']
    if root.count:
        _draw(root, 0.0, 0, WIDTH / root.count, height, root.count, parts)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _draw(frame: Frame, x: float, level: int, scale: float, height: int, total: int, parts: list[str]) -> None:
    """The frames inside this one, each above it, in the order of their names."""
    for name, inner in sorted(frame.inner.items()):
        width = inner.count * scale
        if width >= LEAST:
            y = height - (level + 1) * ROW
            share = f"{name}: {inner.count} samples, {100 * inner.count / total:.1f} %"
            parts.append(f'<g><title>{html.escape(share)}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
                         f'height="{ROW - 1}" fill="{colour(name)}" rx="1"/>')
            fits = int(width / CHARACTER)
            if fits >= 3:
                label = name if len(name) <= fits else name[:fits - 2] + ".."
                parts.append(f'<text x="{x + 2:.1f}" y="{y + 11}">{html.escape(label)}</text>')
            parts.append("</g>")
            _draw(inner, x, level + 1, scale, height, total, parts)
        x += width
