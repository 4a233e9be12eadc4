"""Line plots as SVG, with nothing but the standard library."""

from __future__ import annotations

import dataclasses
import html
import math

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 80, 140, 40, 50
COLOURS = ("#1b6ca8", "#c8553d", "#e0a030", "#4f8a4b", "#7d5ba6", "#555555")


@dataclasses.dataclass(frozen=True)
class Figure:
    """Lines by name, each a list of (x, y); both axes are logarithmic where all values are positive."""

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
