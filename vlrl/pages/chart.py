"""The chart of all pages: lines over steps as inline SVG, with titled axes, bands and a logarithmic scale.

Everything is drawn here; `templates/page.js` only shows the values under the pointer, switches the scale, and
saves the values as CSV and the drawing as SVG or PNG.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 10, 42
MAX_POINTS = 240
SMOOTH_FROM = 24  # points from which a smoothed line is drawn over the raw one
TICK_WIDTH = 6.0  # of a letter beside an axis
LOG_FROM = 10.0  # ratio of the largest to the smallest value from which a logarithmic scale is offered
COLOURS = 12  # classes c0 ... c11 of the style
PLOT = Markup('<g class="plot {}"{}>{}</g>')

Point = tuple[float, float]
Spread = tuple[float, float, float, float]  # x, lowest, mean, highest
Place = Callable[[float, float], Point]


@dataclass(frozen=True)
class Band:
    """The steps of one phase."""

    name: str
    first: float
    last: float


@dataclass(frozen=True)
class Line:
    """One line of a chart. `spread` is drawn as a band behind it; `smoothed` is drawn over its raw points."""

    name: str
    points: Sequence[Point]
    spread: Sequence[Spread] = ()
    smoothed: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines over a common axis.

    Args:
        title: What is drawn; the heading of the figure.
        lines: From one line on.
        across, up: The titles of the axes, with units.
        phases: Steps of each phase: every second one is shaded, and a line starts anew in each.
        labels: Names of the places 0, 1, ... of an axis without numbers.
        dots: Whether every point has a dot.
    """

    title: str
    lines: Sequence[Line]
    across: str = "step"
    up: str = "value"
    phases: Sequence[Band] = ()
    labels: Sequence[str] = ()
    dots: bool = False
    means: str = ""  # the explanation of the title

    @property
    def summary(self) -> str:
        """The chart in words, for readers who do not see it: each line's first, last, lowest and highest
        value."""
        parts = []
        for line in self.lines:
            if line.points:
                values = [y for _, y in line.points]
                parts.append(
                    f"{line.name}: from {number(values[0])} to {number(values[-1])}, "
                    f"lowest {number(min(values))}, highest {number(max(values))}"
                )
        return f"{self.title}, {self.up} by {self.across}. {'; '.join(parts) or 'No values'}."

    @property
    def last(self) -> str:
        """The last value of a single line; "" for several lines, or none."""
        return number(self.lines[0].points[-1][1]) if len(self.lines) == 1 and self.lines[0].points else ""

    @property
    def has_log(self) -> bool:
        """Whether a logarithmic scale says more: all values are above 0, and they span a factor of ten."""
        values = self._values()
        return bool(values) and min(values) > 0 and max(values) / min(values) >= LOG_FROM

    def _values(self) -> list[float]:
        shown = [y for line in self.lines for _, y in line.points]
        return shown + [y for line in self.lines for _, low, _, high in line.spread for y in (low, high)]

    @property
    def svg(self) -> Markup:
        """The drawing."""
        xs = [x for line in self.lines for x, _ in line.points] or [0.0, 1.0]
        first, last = min(xs), max(xs)
        plots: list[Markup] = []
        frames: dict[str, list[float]] = {}
        for kind in ("linear", "log") if self.has_log else ("linear",):
            low, high = _limits(self._values(), kind)
            place = _placing(first, last, low, high, kind)
            frames[kind] = [float(f"{v:.6g}") for v in (first, last, low, high)]
            hidden = Markup(' display="none"') if kind == "log" else ""
            plots.append(PLOT.format(kind, hidden, self._plot(place, (first, last), (low, high), kind)))
        data: dict[str, object] = {
            "x": self.across,
            "frame": [LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM],
            "scales": frames,
        }
        data["lines"] = [{"name": line.name, "points": _rounded(line)} for line in self.lines]
        return Markup(
            '<svg class="chart{}" viewBox="0 0 {} {}" role="img" tabindex="0" aria-label="{}" '
            'data-chart="{}">{}</svg>'
        ).format(
            " single" if len(self.lines) == 1 else "",
            *(WIDTH, HEIGHT, self.summary, json.dumps(data, separators=(",", ":"))),
            Markup("").join(plots),
        )

    def _plot(self, place: Place, across: tuple[float, float], up: tuple[float, float], kind: str) -> Markup:
        parts = [_axes(place, across, up, kind, (self.across, self.up), self.labels)]
        parts += [_shade(place, band, across, up) for band in self.phases[1::2]]
        for index, line in enumerate(self.lines):
            colour = f"c{index % COLOURS}"
            for piece in _pieces(line.spread, self.phases):
                edge = [place(x, high) for x, _, _, high in piece]
                edge += [place(x, low) for x, low, _, _ in reversed(piece)]
                parts.append(_shape("polygon", f"spread {colour}", edge))
            for points in _pieces(line.points, self.phases):
                smoothed = line.smoothed and len(points) >= SMOOTH_FROM
                style = f"raw {colour}" if smoothed else f"main {colour}"
                parts.append(_shape("polyline", style, [place(*point) for point in points]))
                parts += [_shape("polyline", style, [place(*point)]) for point in points if self.dots]
                if smoothed:
                    low, high = up
                    kept = [(x, min(max(y, low), high)) for x, y in smooth(points)]
                    parts.append(_shape("polyline", f"main {colour}", [place(*point) for point in kept]))
        return Markup("").join(parts)


def seeds_chart(
    title: str, curves: Mapping[str, Sequence[Sequence[float | None]]], across: str, up: str
) -> Chart:
    """A line per name: the mean of its runs at each step, over a band from the lowest to the highest run.

    Args:
        title: The heading.
        curves: By name a list of values per run, one value per step; None where a run has no number.
        across, up: The titles of the axes.
    """
    lines = []
    for name, runs in curves.items():
        spread: list[Spread] = []
        for step, values in enumerate(zip(*runs), start=1):
            if known := [value for value in values if value is not None]:
                spread.append((step, min(known), sum(known) / len(known), max(known)))
        lines.append(spread_line(name, spread, banded=len(runs) > 1))
    return Chart(title, lines, across, up)


def spread_line(name: str, spread: Sequence[Spread], banded: bool) -> Line:
    """The line through the means of several runs, with the band between the lowest and the highest if there
    are several."""
    return Line(name, [(x, mean) for x, _, mean, _ in spread], spread if banded else (), smoothed=not banded)


def thin(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """At most `limit` points: neighbours are averaged in equal shares."""
    if len(points) <= limit:
        return list(points)
    edges = [round(i * len(points) / limit) for i in range(limit + 1)]
    return [_mean(points[a:b]) for a, b in itertools.pairwise(edges)]


def _mean(points: Sequence[Point]) -> Point:
    return sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)


def smooth(points: Sequence[Point], share: float = 0.06) -> list[Point]:
    """Local linear regression: at each point the value of the least-squares line through its 2h + 1 nearest
    points, h = share * n (at least 2).

    Straight lines stay as they are. Both ends are smoothed like the middle: the line does not run into the
    first or the last raw value, as a moving average with a shrinking window does.
    """
    count = min(2 * max(2, round(share * len(points))) + 1, len(points))
    out = []
    for i, (x, _) in enumerate(points):
        start = min(max(i - count // 2, 0), len(points) - count)
        near = points[start : start + count]
        middle_x, middle_y = _mean(near)
        spread = sum((px - middle_x) ** 2 for px, _ in near)
        slope = sum((px - middle_x) * (py - middle_y) for px, py in near) / spread if spread else 0.0
        out.append((x, middle_y + slope * (x - middle_x)))
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


def log_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Powers of ten inside [low, high], with 2 and 5 times them where there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1,)):
        found = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]
        if len(found) <= count:
            break
    return found[:: -(-len(found) // count) or 1]


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


def _limits(values: Sequence[float], kind: str) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if kind == "log":
        factor = (high / low) ** 0.05
        return low / factor, high * factor
    if low == high == 0:
        return -0.06, 1.0
    pad = (high - low) * 0.06 or abs(high) * 0.1
    return low - pad, high + pad


def _placing(first: float, last: float, low: float, high: float, kind: str) -> Place:
    """(x, value) -> its place in the drawing. The script has the same formula."""
    scale: Callable[[float], float] = math.log if kind == "log" else float
    bottom, top = scale(low), scale(high)

    def place(x: float, y: float) -> Point:
        across = (x - first) / (last - first) if last > first else 0.5
        up = (scale(y) - bottom) / (top - bottom)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    return place


def _rounded(line: Line) -> list[list[float]]:
    spread = {x: (low, high) for x, low, _, high in line.spread}
    rows = [(x, y, *spread.get(x, ())) for x, y in line.points]
    return [[float(f"{x:.6g}"), *(float(f"{value:.5g}") for value in values)] for x, *values in rows]


def _pieces(points: Sequence[tuple[float, ...]], bands: Sequence[Band]) -> list[list[Any]]:
    if len(bands) < 2:
        return [list(points)] if points else []
    pieces = [[point for point in points if band.first <= point[0] <= band.last] for band in bands]
    return [piece for piece in pieces if piece]


def _shape(kind: str, style: str, points: Sequence[Point]) -> Markup:
    if kind == "polyline" and len(points) == 1:
        return Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="2.5"/>').format(style, *points[0])
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Markup('<{0} class="{1}" points="{2}"/>').format(Markup(kind), style, text)


def _shade(place: Place, band: Band, across: tuple[float, float], up: tuple[float, float]) -> Markup:
    (x1, y1), (x2, y2) = place(band.first - 0.5, up[1]), place(band.last + 0.5, up[0])
    left, right = max(x1, LEFT), min(x2, WIDTH - RIGHT)
    title = Markup("<title>phase {}</title>").format(band.name)
    return Markup('<rect class="band" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">{}</rect>').format(
        left, y1, max(right - left, 0), y2 - y1, title
    )


def _axes(
    place: Place,
    across: tuple[float, float],
    up: tuple[float, float],
    kind: str,
    titles: tuple[str, str],
    labels: Sequence[str],
) -> Markup:
    line = Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>')
    text = Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts: list[Markup] = []
    for value in log_ticks(*up) if kind == "log" else ticks(*up):
        y = place(across[0], value)[1]
        parts += [line.format(LEFT, right, y, y), text.format(LEFT - 6, y + 3.5, "end", number(value))]
    round_ones = ticks(*across, 5)
    whole = [tick for tick in round_ones if tick == int(tick)]
    shown = (
        whole if len(whole) > 1 else round_ones
    )  # steps are whole; an axis of 0.6 to 1 has one whole number
    marks: list[tuple[float, str]] = (
        list(enumerate(labels)) if labels else [(tick, number(tick)) for tick in shown]
    )
    widest = max(map(len, labels), default=0) * TICK_WIDTH
    crowded = widest * (len(labels) - 1) > right - LEFT
    ends = {0: "start", len(marks) - 1: "end"} if widest / 2 > RIGHT and len(marks) > 1 else {}
    for index, (value, name) in enumerate(marks):  # long names stand in two rows, inside the drawing
        down = bottom + 15 + 11 * (crowded and index % 2)
        parts.append(text.format(place(value, up[1])[0], down, ends.get(index, "middle"), name))
    title = Markup('<text class="axis" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>')
    parts.append(title.format((LEFT + right) / 2, HEIGHT - (3 if crowded else 8), titles[0]))
    turned = '<text class="axis" transform="translate(13 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>'
    parts.append(Markup(turned).format((TOP + bottom) / 2, titles[1]))
    return Markup("").join(parts)
