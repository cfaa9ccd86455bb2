"""The curves of `benchmarks/growth.py` as one SVG picture: a panel each, both axes logarithmic, no library
needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from vlrl.pages.chart import number

COLUMNS, WIDTH, HEIGHT = 3, 310, 220
LEFT, RIGHT, TOP, BOTTOM = 50, 16, 44, 30
STYLE = (
    "text{font:11px 'DejaVu "
    "Sans',Helvetica,Arial,sans-serif;fill:#667085}.title{font-weight:bold;fill:#1c2430}.grid{stroke:#dfe3ea}"
    ".fit{stroke:#2563eb;stroke-width:1.5}.linear{stroke:#98a2b3;stroke-dasharray:4 "
    "3}.point{fill:#2563eb}.left-out{fill:#fff;stroke:#2563eb}"
)


def plot(results: Mapping[str, Mapping[str, Any]]) -> str:
    """An SVG document; `results` are what `measure` returns, by the name of the curve."""
    rows = math.ceil(len(results) / COLUMNS)
    width, height = COLUMNS * WIDTH, rows * HEIGHT + 26
    panels = [
        Markup('<g transform="translate({},{})">{}</g>').format(
            i % COLUMNS * WIDTH, i // COLUMNS * HEIGHT, _panel(name, result)
        )
        for i, (name, result) in enumerate(results.items())
    ]
    legend = Markup(
        '<g transform="translate({},{})"><circle class="point" cx="0" cy="-4" r="3"/><text x="8">measured, '
        "CPU seconds</text>"
        '<circle class="left-out" cx="170" cy="-4" r="3"/><text x="178">measured, not fitted</text>'
        '<line class="fit" x1="318" x2="340" y1="-4" y2="-4"/><text x="346">fitted power</text>'
        '<line class="linear" x1="446" x2="468" y1="-4" y2="-4"/><text x="474">linear, through the middle '
        "of the fit</text></g>"
    ).format(LEFT, height - 8)
    return str(
        Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" '
            'height="{1}"><title>How cost grows</title>'
            '<style>{2}</style><rect width="{0}" height="{1}" fill="#fff"/>{3}{4}</svg>\n'
        ).format(width, height, Markup(STYLE), Markup("").join(panels), legend)
    )


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten in [low, high]; with less than two of them also 2 and 5 times these. Of more than five
    every second one."""
    powers = [10.0**k for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    inside = [power for power in powers if low <= power <= high]
    if len(inside) < 2:
        inside = [tick for power in powers for factor in (1, 2, 5) if low <= (tick := power * factor) <= high]
    return inside[::2] if len(inside) > 5 else inside


def _panel(name: str, result: Mapping[str, Any]) -> Markup:
    points = [(float(size), float(seconds)) for size, seconds in result["seconds"].items()]
    fitted = [point for point in points if int(point[0]) in result["fitted"]]
    first, last = points[0][0], points[-1][0]
    low, high = min(y for _, y in points) / 1.5, max(y for _, y in points) * 1.5

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / first) / math.log(last / first)
        up = math.log(y / low) / math.log(high / low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [Markup('<text class="title" x="{}" y="16">{}</text>').format(LEFT, escape(name))]
    parts.append(
        Markup('<text x="{}" y="32">exponent {:.2f}, at the end {:.2f}</text>').format(
            LEFT, result["exponent"], result["exponent_at_end"]
        )
    )
    for tick in log_ticks(low, high):
        _, y = place(first, tick)
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                LEFT, WIDTH - RIGHT, y, y
            )
        )
        parts.append(
            Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                LEFT - 6, y + 4, number(tick)
            )
        )
    for size, _ in points:
        parts.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                place(size, low)[0], HEIGHT - 12, number(size)
            )
        )
    middle = [math.exp(sum(math.log(point[axis]) for point in fitted) / len(fitted)) for axis in (0, 1)]
    for kind, slope in (("linear", 1.0), ("fit", float(result["exponent"]))):
        parts.append(_line(kind, slope, middle, (fitted[0][0], fitted[-1][0]), (low, high), place))
    for point in points:
        x, y = place(*point)
        parts.append(
            Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="3"/>').format(
                "point" if point in fitted else "left-out", x, y
            )
        )
    return Markup("").join(parts)


def _line(
    kind: str,
    slope: float,
    middle: Sequence[float],
    ends: tuple[float, float],
    bounds: tuple[float, float],
    place: Any,
) -> Markup:
    """y = middle_y (x / middle_x)^slope between `ends`, cut off where it leaves `bounds`."""
    sizes = [ends[0] * (ends[1] / ends[0]) ** (i / 60) for i in range(61)]
    values = [(x, middle[1] * (x / middle[0]) ** slope) for x in sizes]
    inside = [place(x, y) for x, y in values if bounds[0] <= y <= bounds[1]]
    (x1, y1), (x2, y2) = inside[0], inside[-1]
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
        kind, x1, y1, x2, y2
    )
