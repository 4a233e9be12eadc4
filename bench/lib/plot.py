"""Line plots as SVG, with nothing but the standard library."""

from __future__ import annotations

import dataclasses
import html
import math

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 80, 140, 40, 50
COLOURS = ("#1b6ca8", "#c8553d", "#e0a030", "#4f8a4b", "#7d5ba6", "#555555", "#2aa5a0", "#d4679b")


@dataclasses.dataclass(frozen=True)
class Figure:
    """Lines by name, each a list of (x, y); both axes are logarithmic where all values are
    positive."""

    title: str
    x_name: str
    y_name: str
    lines: dict[str, list[tuple[float, float]]]


class Axis:
    """Maps values to coordinates from `low` to `high`."""

    def __init__(self, values: list[float], low: float, high: float):
        self.log = min(values) > 0 and max(values) / min(values) >= 5
        self.low, self.high = low, high
        self.least, self.most = min(values), max(values)
        if not self.log:
            self.least = min(self.least, 0)
        if self.least == self.most:
            self.most = self.least + 1

    def at(self, value: float) -> float:
        f = math.log10 if self.log else float
        share = (f(value) - f(self.least)) / (f(self.most) - f(self.least))
        return self.low + share * (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.ceil(math.log10(self.least)), math.floor(math.log10(self.most))
            powers = [10.0 ** e for e in range(first, last + 1)]
            return powers if len(powers) > 1 else [self.least, *powers, self.most]
        step = 10.0 ** math.floor(math.log10(self.most - self.least))
        step = next(step * f for f in (0.2, 0.5, 1, 2) if (self.most - self.least) / (step * f) <= 6)
        return [step * i for i in range(math.ceil(self.least / step), math.floor(self.most / step) + 1)]


def text(x: float, y: float, content: str, anchor: str = "middle", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{html.escape(content)}</text>'


def svg(figure: Figure) -> str:
    points = [p for line in figure.lines.values() for p in line]
    if not points:
        return '<svg xmlns="http://www.w3.org/2000/svg"/>\n'
    across = Axis([p[0] for p in points], LEFT, WIDTH - RIGHT)
    up = Axis([p[1] for p in points], HEIGHT - BOTTOM, TOP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
             'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>',
             text(WIDTH / 2, 20, figure.title, extra='font-size="14"'),
             text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, figure.x_name),
             text(18, HEIGHT / 2, figure.y_name, extra=f'transform="rotate(-90 18 {HEIGHT / 2})"')]
    for value in across.ticks():
        x = across.at(value)
        parts.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(text(x, HEIGHT - BOTTOM + 16, f"{value:g}"))
    for value in up.ticks():
        y = up.at(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(text(LEFT - 6, y + 4, f"{value:g}", "end"))
    for i, (name, line) in enumerate(figure.lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="3" fill="{colour}"/>' for x, y in line]
        parts.append(text(WIDTH - RIGHT + 10, TOP + 16 * i + 8, name, "start", f'fill="{colour}"'))
    return "\n".join([*parts, "</svg>"]) + "\n"


ROW, BAR_LEFT, BAR_WIDTH = 11, 150, 520


def bars(title: str, groups: dict[str, dict[str, float]], order: tuple[str, ...]) -> str:
    """A horizontal bar for each member of each group; the line at 1 is what they are compared
    with."""
    most = max(1.0, *(v for members in groups.values() for v in members.values() if math.isfinite(v)))
    scale = BAR_WIDTH / most
    height = 60 + sum((len(members) + 1) * ROW for members in groups.values()) + 20
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{BAR_LEFT + BAR_WIDTH + 150}" height="{height}" '
             'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>',
             text((BAR_LEFT + BAR_WIDTH) / 2, 20, title, extra='font-size="14"')]
    y = 40.0
    for name, members in groups.items():
        parts.append(text(BAR_LEFT - 8, y + ROW * len(members) / 2 + 4, name, "end"))
        for member in (m for m in order if m in members):
            value = members[member]
            width = scale * (value if math.isfinite(value) else 0)
            colour = COLOURS[order.index(member) % len(COLOURS)]
            parts.append(f'<rect x="{BAR_LEFT}" y="{y:.1f}" width="{width:.1f}" height="{ROW - 1}" fill="{colour}">'
                         f'<title>{html.escape(f"{name}, {member}: {value:.3g}")}</title></rect>')
            parts.append(text(BAR_LEFT + width + 4, y + ROW - 2, f"{value:.2f}", "start", 'font-size="9" fill="#555"'))
            y += ROW
        y += ROW
    x = BAR_LEFT + scale
    parts.append(f'<path d="M{x:.1f} 34V{y:.1f}" stroke="#333" stroke-dasharray="3,3"/>')
    for i, member in enumerate(order):
        parts.append(text(BAR_LEFT + BAR_WIDTH + 60, 50 + 16 * i, member, "start",
                          f'fill="{COLOURS[i % len(COLOURS)]}"'))
    return "\n".join([*parts, "</svg>"]) + "\n"
