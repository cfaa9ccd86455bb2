import math
import xml.etree.ElementTree as ET

import pytest

from vlrl.logging.charts import MAX_POINTS, Band, line_chart, number, smooth, thin, ticks


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


def drawn(points, bands=()):
    return ET.fromstring(str(line_chart("reward/<b>", points, bands)))


def test_a_line_is_drawn_upwards_inside_the_frame():
    svg = drawn([(0, 0.0), (10, 1.0)])
    (x1, y1), (x2, y2) = (
        tuple(map(float, pair.split(","))) for pair in svg.find("polyline").get("points").split()
    )
    assert (x1, x2) == (52, 370) and 8 < y2 < y1 < 166
    assert svg.get("aria-label") == "reward/<b>"


@pytest.mark.parametrize(
    "points", [[(3, 5.0)], [(0, 0.0), (1, 0.0)], [(0, 1e300), (1, -1e300)], [(0, 1e-12), (1, 2e-12)]]
)
def test_odd_data_still_draws_finite_numbers(points):
    svg = drawn(points)
    for element in svg.iter():
        for key in ("x", "y", "x1", "y1", "cx", "cy", "width", "height"):
            assert math.isfinite(float(element.get(key, 0)))


def test_each_phase_has_a_line_of_its_own():
    points = [(i, float(i)) for i in range(10)]
    svg = drawn(points, [Band("sft", 0, 4), Band("rl", 5, 9)])
    assert [len(line.get("points").split()) for line in svg.findall("polyline")] == [5, 5]
    assert [band.find("title").text for band in svg.findall("rect")] == ["phase rl"]
