"""Line charts as inline SVG: no script, no network, a few kilobytes each. (`templates/report.js` adds the
values under the pointer.)"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 380, 190
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 8, 24
MAX_POINTS = 240
SMOOTH_FROM = 24  # points from which a smoothed line is drawn over the raw one

Point = tuple[float, float]


@dataclass(frozen=True)
class Band:
    """The steps of one phase."""

    name: str
    first: float
    last: float


def thin(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """At most `limit` points: neighbours are averaged in equal shares."""
    if len(points) <= limit:
        return list(points)
    edges = [round(i * len(points) / limit) for i in range(limit + 1)]
    return [_mean(points[a:b]) for a, b in itertools.pairwise(edges)]


def _mean(points: Sequence[Point]) -> Point:
    return sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)


def smooth(points: Sequence[Point], share: float = 0.06) -> list[Point]:
    """Centred moving average over 2h + 1 points, h = share * n (at least 2), narrower towards both ends, so
    that the average is never one-sided."""
    reach = max(2, round(share * len(points)))
    out = []
    for i in range(len(points)):
        half = min(reach, i, len(points) - 1 - i)
        out.append((points[i][0], _mean(points[i - half : i + half + 1])[1]))
    return out


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) inside [low, high]."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if span / (power * factor) <= count)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Short text for an axis or a table: 1234567 -> 1.23M, 0.00012 -> 1.2e-4."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.3g}k"
    if size and size < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.4g}"


def line_chart(name: str, points: Sequence[Point], bands: Sequence[Band] = ()) -> Markup:
    """One curve over steps; phases are shaded alternately and start a new line."""
    shown = thin(points)
    low, high = min(y for _, y in shown), max(y for _, y in shown)
    pad = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    low, high = low - pad, high + pad
    first, last = min(x for x, _ in shown), max(x for x, _ in shown)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / (last - first) if last > first else 0.5
        return LEFT + across * (WIDTH - LEFT - RIGHT), TOP + (high - y) / (high - low) * (
            HEIGHT - TOP - BOTTOM
        )

    parts = [_grid(place, low, high, first, last), *(_shade(place, band, low, high) for band in bands[1::2])]
    for piece in _pieces(shown, bands):
        smoothed = len(piece) >= SMOOTH_FROM
        parts.append(_line([place(*point) for point in piece], "raw" if smoothed else "main"))
        if smoothed:
            parts.append(_line([place(*point) for point in smooth(piece)], "main"))
    near = [
        [float(f"{x:.6g}"), float(f"{y:.5g}"), *(round(value, 1) for value in place(x, y))] for x, y in shown
    ]
    data = json.dumps(near, separators=(",", ":")).replace(".0,", ",").replace(".0]", "]")
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}" data-points="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, name, data, Markup("").join(parts))


def _pieces(points: Sequence[Point], bands: Sequence[Band]) -> list[list[Point]]:
    if len(bands) < 2:
        return [list(points)]
    pieces = [[point for point in points if band.first <= point[0] <= band.last] for band in bands]
    return [piece for piece in pieces if piece]


def _line(points: Sequence[Point], kind: str) -> Markup:
    if len(points) == 1:
        return Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="2.5"/>').format(kind, *points[0])
    return Markup('<polyline class="{}" points="{}"/>').format(
        kind, " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    )


def _shade(
    place: Callable[[float, float], tuple[float, float]], band: Band, low: float, high: float
) -> Markup:
    (x1, y1), (x2, y2) = place(band.first - 0.5, high), place(band.last + 0.5, low)
    left, right = max(x1, LEFT), min(x2, WIDTH - RIGHT)
    title = Markup("<title>phase {}</title>").format(band.name)
    return Markup('<rect class="band" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">{}</rect>').format(
        left, y1, max(right - left, 0), y2 - y1, title
    )


def _grid(
    place: Callable[[float, float], tuple[float, float]], low: float, high: float, first: float, last: float
) -> Markup:
    parts = []
    for value in ticks(low, high):
        _, y = place(first, value)
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                LEFT, WIDTH - RIGHT, y, y
            )
        )
        parts.append(
            Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                LEFT - 6, y + 3.5, number(value)
            )
        )
    for value in [tick for tick in ticks(first, last, 5) if tick == int(tick)]:
        x, _ = place(value, low)
        parts.append(
            Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                x, HEIGHT - 7, escape(number(value))
            )
        )
    return Markup("").join(parts)


# --- several runs in one chart ------------------------------------------------------------------------------

WIDE, TALL, SIDE, FOOT = 460, 270, 62, 42


def seeds_chart(curves: Mapping[str, Sequence[Sequence[float | None]]], across: str, up: str) -> Markup:
    """A line per name: the mean of its runs at each step that all of them reached, over a band from the
    lowest to the highest run.

    Args:
        curves: a list of values per run, by name; None where a run has no number.
        across, up: titles of the axes.
    """
    spans = {name: [_span(values) for values in zip(*runs)] for name, runs in curves.items()}
    known = [span for found in spans.values() for span in found if span]
    low, high = (min(span[0] for span in known), max(span[2] for span in known)) if known else (0.0, 1.0)
    pad = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    low, high = low - pad, high + pad
    last = max([len(found) for found in spans.values()] + [2])

    def place(step: float, value: float) -> tuple[float, float]:
        x = SIDE + (step - 1) / (last - 1) * (WIDE - SIDE - RIGHT)
        return x, TOP + (high - value) / (high - low) * (TALL - TOP - FOOT)

    parts = [_axes(place, low, high, last, across, up)]
    near: dict[str, list[list[float]]] = {}
    for index, (name, found) in enumerate(spans.items()):
        points = [(step, span) for step, span in enumerate(found, start=1) if span]
        edge = [place(step, span[2]) for step, span in points]
        edge += [place(step, span[0]) for step, span in reversed(points)]
        parts.append(_shape("polygon", f"spread c{index % 12}", edge))
        parts.append(_shape("polyline", f"c{index % 12}", [place(step, span[1]) for step, span in points]))
        near[name] = [
            [step, float(f"{span[1]:.4g}"), *(round(v, 1) for v in place(step, span[1]))]
            for step, span in points
        ]
    return Markup(
        '<svg class="chart curves" viewBox="0 0 {} {}" role="img" aria-label="{}" data-series="{}">{}</svg>'
    ).format(WIDE, TALL, f"{up} by {across}", json.dumps(near), Markup("").join(parts))


def _span(values: Sequence[float | None]) -> tuple[float, float, float] | None:
    """(lowest, mean, highest) of the runs that have a number."""
    known = [value for value in values if value is not None]
    return (min(known), sum(known) / len(known), max(known)) if known else None


def _shape(kind: str, style: str, points: Sequence[Point]) -> Markup:
    if kind == "polyline" and len(points) == 1:
        return Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="2.5"/>').format(style, *points[0])
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Markup('<{0} class="{1}" points="{2}"/>').format(Markup(kind), style, text)


def _axes(
    place: Callable[[float, float], Point], low: float, high: float, last: int, across: str, up: str
) -> Markup:
    line = Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>')
    text = Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
    parts = []
    for value in ticks(low, high):
        y = place(1, value)[1]
        parts += [line.format(SIDE, WIDE - RIGHT, y, y), text.format(SIDE - 6, y + 3.5, "end", number(value))]
    steps = [tick for tick in ticks(1, last, 5) if tick == int(tick) and tick > last / 12]
    for value in [1.0, *steps]:
        parts.append(text.format(place(value, low)[0], TALL - FOOT + 14, "middle", number(value)))
    parts.append(text.format((SIDE + WIDE - RIGHT) / 2, TALL - 8, "middle", across))
    parts.append(
        Markup(
            '<text class="tick" transform="translate(12 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>'
        ).format((TOP + TALL - FOOT) / 2, up)
    )
    return Markup("").join(parts)
