import json
import math
import re
import xml.etree.ElementTree as ET

import pytest

from vlrl.pages.chart import (
    MAX_POINTS,
    Band,
    Chart,
    Line,
    log_ticks,
    number,
    seeds_chart,
    smooth,
    thin,
    ticks,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.5, "0.5"),
        (0.12345, "0.1235"),
        (1234567, "1.23M"),
        (12345, "12.3k"),
        (0.00012, "1.2e-4"),
        (-2.5e-7, "-2.5e-7"),
        (9999, "9999"),
    ],
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (-0.1, 0.1, [-0.1, -0.05, 0, 0.05, 0.1]),
        (3, 3, [3]),
        (0, 10, [0, 2.5, 5, 7.5, 10]),
        (95, 260, [100, 150, 200, 250]),
    ],
)
def test_ticks_are_round_and_inside(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_thin_keeps_the_mean_and_leaves_short_lines_alone():
    points = [(float(i), float(i % 7)) for i in range(1000)]
    shown = thin(points)
    assert len(shown) == MAX_POINTS
    assert shown[0] == (1.5, 1.5)  # steps 0 to 3
    assert thin(points[:10]) == points[:10]


def test_smoothing_keeps_a_straight_line_and_damps_noise():
    line = [(float(i), 2.0 * i) for i in range(50)]
    assert [y for _, y in smooth(line)] == pytest.approx([y for _, y in line])
    noisy = [(float(i), float((-1) ** i)) for i in range(50)]
    assert max(abs(y) for _, y in smooth(noisy)[3:-3]) <= 0.2


def test_smoothing_does_not_end_on_the_last_raw_point():
    """By hand, for five points in one window: mean 0.2, slope (-2*0 - 0 + 0 + 1*0 + 2*1) / 10 = 0.2."""
    points = [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (3.0, 0.0), (4.0, 1.0)]
    assert [y for _, y in smooth(points)] == pytest.approx([-0.2, 0.0, 0.2, 0.4, 0.6])
    jump = [(float(i), 0.0) for i in range(99)] + [(99.0, 1.0)]
    assert 0 < smooth(jump)[-1][1] < 0.35


def drawn(points, bands=()):
    chart = Chart("reward/<b>", [Line("a", thin(points), smoothed=True)], up="score", phases=bands)
    return ET.fromstring(str(chart.svg))


def plots(svg):
    return {group.get("class").split()[1]: group for group in svg.findall("g")}


def test_a_line_is_drawn_upwards_inside_the_frame():
    svg = drawn([(0, 0.0), (10, 1.0)])
    (x1, y1), (x2, y2) = (
        tuple(map(float, pair.split(",")))
        for pair in plots(svg)["linear"].find("polyline").get("points").split()
    )
    assert (x1, x2) == (62, 408) and 10 < y2 < y1 < 198
    assert svg.get("aria-label") == "reward/<b>, score by step. a: from 0 to 1, lowest 0, highest 1."
    assert [text.text for text in svg.iter("text") if text.get("class") == "axis"] == ["step", "score"]


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(3, 5.0)],
        [(0, 0.0), (1, 0.0)],
        [(0, 1e300), (1, -1e300)],
        [(0, 1e-12), (1, 2e-12)],
        [(0, 1), (1, 1e9)],
    ],
)
def test_odd_data_still_draws_finite_numbers(points):
    svg = drawn(points)
    for element in svg.iter():
        for key in ("x", "y", "x1", "y1", "cx", "cy", "width", "height"):
            assert math.isfinite(float(element.get(key, 0)))


def test_each_phase_has_a_line_of_its_own():
    points = [(i, float(i)) for i in range(10)]
    svg = plots(drawn(points, [Band("sft", 0, 4), Band("rl", 5, 9)]))["linear"]
    assert [len(line.get("points").split()) for line in svg.findall("polyline")] == [5, 5]
    assert [band.find("title").text for band in svg.findall("rect")] == ["phase rl"]


def test_a_logarithmic_scale_where_values_span_a_factor_of_ten():
    assert set(plots(drawn([(0, 1.0), (1, 5.0)]))) == {"linear"}
    assert set(plots(drawn([(0, 0.0), (1, 50.0)]))) == {"linear"}
    both = plots(drawn([(0, 1.0), (1, 10.0), (2, 100.0)]))
    assert set(both) == {"linear", "log"} and both["log"].get("display") == "none"
    ys = [float(p.split(",")[1]) for p in both["log"].find("polyline").get("points").split()]
    # equal factors are equal distances, to the tenth of a pixel that is written
    assert round(abs(ys[0] - 2 * ys[1] + ys[2]), 6) <= 0.1


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1, 100, [1, 10, 100]), (0.9, 12, [1, 2, 5, 10]), (1e-6, 1e3, [1e-6, 1e-4, 1e-2, 1, 100])],
)
def test_log_ticks(low, high, expected):
    assert log_ticks(low, high) == pytest.approx(expected)


def test_several_seeds_are_a_mean_over_a_band_and_one_seed_has_none():
    chart = seeds_chart("t", {"a": [[0.0, 1.0, None], [1.0, 3.0, None]], "b": [[2.0, 2.0, 2.0]]}, "step", "y")
    assert chart.lines[0].points == [(1, 0.5), (2, 2.0)]
    assert chart.lines[0].spread == [(1, 0.0, 0.5, 1.0), (2, 1.0, 2.0, 3.0)]
    assert chart.lines[1].spread == () and len(chart.lines[1].points) == 3
    svg = ET.fromstring(str(chart.svg))
    assert len(plots(svg)["linear"].findall("polygon")) == 1
    data = json.loads(svg.get("data-chart"))
    assert data["lines"][0]["points"][1] == [2, 2, 1, 3]  # x, mean, lowest, highest: what is shown and saved


def test_long_names_of_places_stand_in_two_rows_inside_the_drawing():
    names = ("adversarial prefix", "answer explanation", "empty symbols", "gibberish", "html and markdown")
    chart = Chart("share", [Line("a", [(i, 0.0) for i in range(5)])], "pattern", "share", labels=names)
    found = re.findall(r'x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">([a-z ]+)</text>', chart.svg)
    placed = {name: (float(x), float(y), anchor) for x, y, anchor, name in found}
    assert [placed[name][2] for name in names] == ["start", *["middle"] * 3, "end"]
    assert [placed[name][1] - placed[names[0]][1] for name in names] == [0.0, 11.0, 0.0, 11.0, 0.0]
    few = Chart("share", [Line("a", [(0, 0.0), (1, 0.0)])], "pattern", "share", labels=("a", "b"))
    assert few.svg.count('text-anchor="start"') == 0


def test_a_chart_of_zeros_has_no_values_below_zero():
    svg = Chart("share", [Line("a", [(0, 0.0), (1, 0.0)])]).svg
    assert ">0.5</text>" in svg and ">-0.5</text>" not in svg


def test_an_axis_of_fractions_has_more_than_its_one_whole_number():
    def marks(*points):
        svg = Chart("accuracy", [Line("a", [(x, 0.5) for x in points])], "temperature").svg
        return re.findall(r'text-anchor="middle">([\d.]+)</text>', svg)

    assert marks(0.6, 1.0) == ["0.6", "0.7", "0.8", "0.9", "1"]
    assert marks(0.0, 6.0) == ["0", "2", "4", "6"]  # steps
