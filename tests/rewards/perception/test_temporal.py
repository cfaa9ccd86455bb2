"""Moments and orders."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vlrl_rewards.puzzles.ordering import METRICS, Ordering, kendall_tau
from vlrl_rewards.video.spans import read_spans, read_times, temporal_iou
from vlrl_rewards.video.temporal import TemporalIou, Timestamp

JUNK = [
    "",
    "<answer></answer>",
    "<answer>never</answer>",
    "<think>2 - 6</think>",
    "<answer>[[[</answer>",
    "<answer>None</answer>",
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>2 - 6</answer>", 1),
        ("<answer>2.0s to 6.0s</answer>", 1),
        ("<answer>[2, 6]</answer>", 1),
        ("<answer>0:02-0:06</answer>", 1),
        ("<answer>from 2 seconds to 6 seconds</answer>", 1),
        ("It is from 4 to 8.", 1 / 3),
        ("<answer>2 - 4</answer>", 0.5),
        ("<answer>6 - 2</answer>", 0),
        ("<answer>0 - 100000</answer>", 4e-5),
        ("<answer>2 - 6, 3 - 9</answer>", 0),
        ("<answer>7 - 9</answer>", 0),
        ("<answer>2</answer>", 0),
    ],
)
def test_temporal_iou(text, expected):
    assert TemporalIou().verify([2, 6], text).score == pytest.approx(expected)
    assert TemporalIou(binary=True, correct_at=0.5).verify("2-6", text).score == float(expected >= 0.5)


@pytest.mark.parametrize("text", JUNK)
def test_junk(text):
    assert (
        TemporalIou().verify([2, 6], text).score
        == Ordering().verify([2, 1, 3], text).score
        == Timestamp().verify(3, text).score
        == 0
    )


def test_several_spans_and_timestamps():
    gold = [[0, 10], [20, 30]]
    assert TemporalIou().verify(gold, "<answer>0-10, 20-30</answer>").score == 1
    assert TemporalIou().verify(gold, "<answer>0-10</answer>").score == 0.5
    assert TemporalIou().verify(gold, "<answer>0-10, 20-30, 40-50, 60-70</answer>").score == 0.5
    scene = {"meta": {"duration": 20}}
    assert TemporalIou(timestamps=True).verify(
        [2, 6], "<answer>2 - 4</answer>", **scene
    ).score == pytest.approx(0.5 * 0.9)
    with pytest.raises(ValueError, match="duration"):
        TemporalIou(timestamps=True).verify([2, 6], "")
    for broken in ([6, 2], "soon", None, [1], [[1, 2], [4, 3]]):
        with pytest.raises(ValueError, match="span"):
            TemporalIou().verify(broken, "")
    assert read_spans("1:00:05 to 1:00:10.5") == [((3605.0, 3610.5), 0)]


def test_timestamp():
    assert Timestamp().verify(3, "<answer>3.5 s</answer>").score == 1
    assert Timestamp().verify(3, "<answer>4.5</answer>").score == 0
    assert Timestamp(mode="decay", tolerance=2).verify(3, "<answer>0:05</answer>").score == pytest.approx(
        np.exp(-1)
    )
    assert Timestamp().verify([2, 6], "<answer>4</answer>").score == 1
    assert (
        Timestamp().verify([2, 6], "<answer>6.5</answer>").score
        == Timestamp().verify([2, 6], "<answer>1 2 3 4 5 6</answer>").score
        == 0
    )
    with pytest.raises(ValueError, match="tolerance"):
        Timestamp(tolerance=0)


def test_temporal_iou_agrees_with_boxes():
    from vlrl_rewards.boxes.geometry import overlap

    rng = np.random.default_rng(0)
    for a, b, c, d in rng.uniform(0, 50, (1000, 4)):
        first, second = (min(a, b), max(a, b)), (min(c, d), max(c, d))
        expected = overlap((first[0], 0, first[1], 1), (second[0], 0, second[1], 1))
        assert temporal_iou(first, second) == pytest.approx(expected, abs=1e-12)
        assert temporal_iou(second, first) == pytest.approx(expected, abs=1e-12)


# --- order --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "exact", "kendall", "positive", "footrule", "positions"),
    [
        ("<answer>3 1 2</answer>", 1, 1, 1, 1, 1),
        ("<answer>[3, 1, 2]</answer>", 1, 1, 1, 1, 1),
        ("<answer>312</answer>", 1, 1, 1, 1, 1),
        ("<answer>3 -> 1 -> 2</answer>", 1, 1, 1, 1, 1),
        ("<answer>3 2 1</answer>", 0, 2 / 3, 1 / 3, 0.5, 1 / 3),
        ("<answer>2 1 3</answer>", 0, 0, 0, 0, 1 / 3),
        ("<answer>3 3 3</answer>", 0, 0, 0, 0, 0),
        ("<answer>3 1</answer>", 0, 0, 0, 0, 0),
        ("<answer>3 1 2 3 1 2</answer>", 0, 0, 0, 0, 0),
        ("<answer>1 2 3, 1 3 2, 3 1 2</answer>", 0, 0, 0, 0, 0),
    ],
)
def test_order(text, exact, kendall, positive, footrule, positions):
    for metric, expected in (
        ("exact", exact),
        ("kendall", kendall),
        ("kendall_positive", positive),
        ("footrule", footrule),
        ("positions", positions),
    ):
        for gold in ([3, 1, 2], "3 1 2", "3, 1, 2"):
            assert Ordering(metric=metric).verify(gold, text).score == pytest.approx(expected)


def test_named_items():
    gold = ["red cup", "a book", "lamp"]
    for text in (
        "red cup, book, lamp",
        "1. Red cup\n2. The book\n3. lamp",
        '["red cup", "a book", "lamp"]',
        "red_cup > book > lamp",
    ):
        assert Ordering().verify(gold, f"<answer>{text}</answer>").score == 1
    assert Ordering(metric="adjacency").verify(
        ["a", "b", "c", "d"], "<answer>a b d c</answer>"
    ).score == pytest.approx(1 / 3)
    assert Ordering(metric="lcs").verify(["a", "b", "c", "d"], "<answer>b c d a</answer>").score == 0.75
    for broken in ([], ["a", "a"], "", 5, [" "]):
        with pytest.raises(ValueError, match="order"):
            Ordering().verify(broken, "")


def test_kendall_agrees_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(1)
    for _ in range(1000):
        n = int(rng.integers(2, 9))
        order, gold = rng.permutation(n), rng.permutation(n)
        assert kendall_tau(list(order), list(gold)) == pytest.approx(
            stats.kendalltau(np.argsort(order), np.argsort(gold)).statistic, abs=1e-9
        )


@pytest.mark.parametrize("metric", ["kendall", "footrule", "positions", "adjacency"])
def test_centred_takes_away_exactly_what_chance_earns(metric):
    for n in (3, 4, 5):
        gold = list(range(n))
        mean = np.mean([METRICS[metric](p, gold) for p in itertools.permutations(gold)])
        assert Ordering(metric=metric).chance(n) == pytest.approx(mean, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.permutations(list("abcdef")), st.permutations(list("abcdef")), st.sampled_from(sorted(METRICS)))
def test_bounds(order, gold, metric):
    score = METRICS[metric](order, gold)
    assert 0 <= score <= 1
    assert METRICS[metric](gold, gold) == 1
    assert (
        Ordering(metric=metric, centred=True).verify(list(gold), f"<answer>{' '.join(order)}</answer>").score
        <= 1
    )


# --- units of time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "60 - 120",
        "1 - 2 minutes",
        "1-2 min",
        "from 1 to 2 minutes",
        "between 1 and 2 mins",
        "1 min - 2 min",
        "1m to 2m",
        "1:00 - 2:00 minutes",
        "60000 ms to 120000 ms",
        "60 s to 2 minutes",
        "1 minute and 0 seconds to 1 minute 60 seconds",
        '{"start": "1 min", "end": "2 min"}',
    ],
)
def test_ranges_in_any_unit_are_seconds(text):
    assert TemporalIou().verify([60, 120], f"<answer>{text}</answer>").score == 1
    assert TemporalIou().verify([1, 2], f"<answer>{text}</answer>").score < 0.1


@pytest.mark.parametrize(
    "text",
    [
        "10 - 20 frames",
        "frame 10 to frame 20",
        "10-20%",
        "10% - 20%",
        "10 to 20 pixels",
        "10 m - 20 m",
        "10 - 20 fps",
    ],
)
def test_numbers_in_other_units_are_no_times(text):
    assert read_spans(text) == [] == read_times(text)
    assert TemporalIou().verify([10, 20], text).score == Timestamp().verify(10, text).score == 0


def test_times_in_any_unit():
    for text, expected in (
        ("1 min", 60),
        ("1.5 minutes", 90),
        ("1 h", 3600),
        ("2 hours 1 min 5 s", 7265),
        ("500 ms", 0.5),
        ("5m", 300),
        ("12 s", 12),
    ):
        assert read_times(text) == [expected], text
    assert Timestamp().verify(5, "<answer>5-10</answer>").score == 0, "a range is not one time"
    assert Timestamp().verify(12, "<answer>12 s-14 s</answer>").score == 0
    assert Timestamp().verify(62, "<answer>-62</answer>").score == 0


@given(
    st.floats(0, 1000),
    st.floats(0, 1000),
    st.sampled_from([("seconds", 1), ("minutes", 60), ("hours", 3600)]),
)
@settings(max_examples=200, deadline=None)
def test_a_unit_scales_a_range(a, b, unit):
    text = f"{a:.4f} to {b:.4f} {unit[0]}"
    (span, _) = read_spans(text)[0]
    assert span == pytest.approx((round(a, 4) * unit[1], round(b, 4) * unit[1]), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3h20", [12000]),
        ("1min30", [90]),
        ("1h05m", [3900]),
        ("3h70", []),
        ("3h2", []),
        ("1h30, 2h00", [5400, 7200]),
        ("5m30", []),
    ],
)
def test_durations_whose_last_unit_is_left_out(text, expected):
    """3 h 20 min = 12,000 s; two digits below 60 are the next smaller unit."""
    assert read_times(text) == expected
