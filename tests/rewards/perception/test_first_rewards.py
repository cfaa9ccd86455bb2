"""iou, counting, classification, jigsaw: right, wrong, garbage, empty and adversarial answers."""

from __future__ import annotations

import pytest
from vlrl_rewards import verify
from vlrl_rewards.recognition.counting import mean_relative_accuracy

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward
from vlrl.types import CoordinateSpace

BOX = [10, 10, 30, 30]


def score(rollout, spec, gold, text, **meta):
    return build(Reward, spec)(rollout(gold, text, **meta))


@pytest.mark.parametrize(
    ("text", "iou", "giou"),
    [
        ("<answer>[10, 10, 30, 30]</answer>", 1, 1),
        ("<think>It is [0,0,1,1].</think><answer>{'bbox_2d': [10, 10, 30, 20]}</answer>", 0.5, 0.5),
        ("<answer>[20.0, 20.0, 40.0, 40.0]</answer>", 1 / 7, 1 / 7 - 2 / 9),
        ("<answer>[110, 110, 130, 130]</answer>", 0, -(14400 - 800) / 14400),
        ("<answer>a dog</answer>", 0, -1),
        ("", 0, -1),
        ("<answer></answer>", 0, -1),
        ("<think><answer>[10,10,30,30]</answer></think>", 0, -1),  # the gold box in the thinking
        ("<answer>[10,10,30,30] [0,0,50,50] [5,5,20,20]</answer>", 0, -1),  # many boxes
        ("<answer>[0,0,1000000,1000000]</answer>", 4e-10, 4e-10),  # a huge box
        ("<answer>[30,30,10,10]</answer>", 0, -1),  # inside out
        ("<answer>[10,10,30,1e999]</answer>", 0, -1),
    ],
)
def test_iou(rollout, text, iou, giou):
    assert score(rollout, "iou", BOX, text) == pytest.approx(iou, abs=1e-12)
    assert score(rollout, {"name": "iou", "overlap": "giou"}, BOX, text) == pytest.approx(giou, abs=1e-9)


def test_iou_options(rollout):
    half = "<answer>[10, 10, 30, 20]</answer>"
    assert score(rollout, {"name": "iou", "binary": True, "correct_at": 0.5}, BOX, half) == 1
    assert score(rollout, {"name": "iou", "binary": True, "correct_at": 0.51}, BOX, half) == 0
    assert score(rollout, {"name": "iou", "power": 2}, BOX, half) == 0.25
    assert score(rollout, {"name": "iou", "layout": "xywh"}, BOX, "<answer>[10, 10, 20, 20]</answer>") == 1
    spaces = (CoordinateSpace((100, 100), (50, 50), "seen"),)
    assert score(rollout, "iou", BOX, "<answer>[5, 5, 15, 15]</answer>", spaces=spaces) == 1
    assert (
        score(
            rollout,
            "iou",
            BOX,
            "<answer>[100, 100, 300, 300]</answer>",
            spaces=(CoordinateSpace((100, 100), (50, 50), "per_mille"),),
        )
        == 1
    )


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "iou", "binary": True, "correct_at": 1.5},
        {"name": "iou", "power": 0},
        {"name": "iou", "overlap": "giou", "power": 2},
        {"name": "iou", "overlap": "x"},
    ],
)
def test_iou_refuses_bad_options(spec):
    with pytest.raises(ConfigError):
        build(Reward, spec)


@pytest.mark.parametrize("gold", [None, [], [1, 2, 3], [[1, 2, 3, 4], [5, 6, 7, 8]], [30, 30, 10, 10]])
def test_iou_raises_on_broken_gold(rollout, gold):
    with pytest.raises(ValueError):
        score(rollout, "iou", gold, "<answer>[1,2,3,4]</answer>")


@pytest.mark.parametrize(
    ("text", "exact", "relative", "mra"),
    [
        ("<answer>10</answer>", 1, 1, 1),
        ("There are ten.", 1, 1, 1),
        ("<answer>9</answer>", 0, 0.9, 0.9),
        ("I see 3 red ones.\nAltogether 10.", 1, 1, 1),
        ("<answer>25</answer>", 0, 0, 0),
        ("<answer>9 or 10 or 11</answer>", 0, 0, 0),
        ("<answer>-10</answer>", 0, 0, 0),
        ("<answer>9.9</answer>", 0, 0, 0),
        ("<think>10</think>", 0, 0, 0),
        ("<answer>many</answer>", 0, 0, 0),
        ("", 0, 0, 0),
        ("<answer>" + "9" * 400 + "</answer>", 0, 0, 0),
    ],
)
def test_counting(rollout, text, exact, relative, mra):
    for mode, expected in (("exact", exact), ("relative", relative), ("mra", mra)):
        assert score(rollout, {"name": "counting", "mode": mode}, 10, text) == pytest.approx(expected)
        assert score(rollout, {"name": "counting", "mode": mode}, "10", text) == pytest.approx(expected)


def test_counting_zero_and_broken_gold(rollout):
    assert [
        score(rollout, {"name": "counting", "mode": m}, 0, "<answer>0</answer>")
        for m in ("exact", "relative", "mra")
    ] == [1, 1, 1]
    assert [
        score(rollout, {"name": "counting", "mode": m}, 0, "<answer>1</answer>")
        for m in ("exact", "relative", "mra")
    ] == [0, 0, 0]
    for gold in ("many", 2.5, None, float("nan")):
        with pytest.raises(ValueError, match="count"):
            score(rollout, "counting", gold, "<answer>1</answer>")
    assert mean_relative_accuracy(130, 100) == pytest.approx(0.5)  # error 0.3 <= 0.5, 0.45, 0.4, 0.35, 0.3


def test_mra_is_the_official_one():
    """Values of the benchmark's own code, run on these pairs: binary rounding decides at the edges (8 and 5.5
    for 10)."""
    official = {
        10: {
            9.5: 1.0,
            9: 0.9,
            8.5: 0.8,
            8: 0.6,
            7.5: 0.6,
            7: 0.5,
            6.5: 0.4,
            6: 0.3,
            5.5: 0.1,
            5: 0.1,
            4.9: 0.0,
        },
        1: {1.45: 0.2, 1.05: 1.0},
        4: {5: 0.6, 3: 0.6, 6: 0.1, 2: 0.1},
    }
    for gold, values in official.items():
        for value, expected in values.items():
            assert mean_relative_accuracy(value, gold) == pytest.approx(expected), (value, gold)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>Boeing_737-800</answer>", 1),
        ("<answer>a boeing 737 800.</answer>", 1),
        ("The answer is Boeing 737-800", 1),
        ("<answer>737 800</answer>", 0),
        ("<answer>Boeing 737-800 or Airbus A320</answer>", 0),
        ("<answer>boeing</answer>", 0),
        ("<answer></answer>", 0),
        ("", 0),
        ("<answer>_-</answer>", 0),
        ("<think>Boeing 737-800</think>", 0),
        ("<answer>Boeing 737-800 not</answer>", 0),
        ("jumbo", 0),
    ],
)
def test_classification(rollout, text, expected):
    assert score(rollout, "classification", "Boeing 737-800", text) == expected


def test_classification_choices_aliases_and_gold(rollout):
    assert score(rollout, "classification", "cat", "<answer>B</answer>", choices=("dog", "cat")) == 1
    assert score(rollout, "classification", "cat", "<answer>(a)</answer>", choices=("dog", "cat")) == 0
    spec = {"name": "classification", "aliases": {"cat": ["feline"]}}
    assert score(rollout, spec, "cat", "<answer>feline</answer>") == 1
    assert score(rollout, spec, "dog", "<answer>feline</answer>") == 0
    assert score(rollout, "classification", ["sofa", "couch"], "<answer>couch</answer>") == 1
    assert score(rollout, "classification", "banana split", "<answer>banan split</answer>") == 0
    assert score(rollout, "classification", 7, "<answer>7</answer>") == 1
    with pytest.raises(ValueError, match="empty"):
        score(rollout, "classification", " ", "<answer> </answer>x")


@pytest.mark.parametrize(
    ("text", "positions", "adjacency", "exact"),
    [
        ("<answer>2 1 4 3</answer>", 1, 1, 1),
        ("<answer>[[2, 1], [4, 3]]</answer>", 1, 1, 1),
        ("<answer>2143</answer>", 1, 1, 1),
        ("<answer>2 1 3 4</answer>", 0.5, 0.25, 0),
        ("<answer>1 2 3 4</answer>", 0, 0.5, 0),
        ("<answer>2 2 2 2</answer>", 0, 0, 0),
        ("<answer>2 1 4</answer>", 0, 0, 0),
        ("<answer>2 1 4 3 5</answer>", 0, 0, 0),
        ("<answer>2 1 4 3 then 1 2 3 4</answer>", 0, 0, 0),
        ("<think>2 1 4 3</think>", 0, 0, 0),
        ("left to right", 0, 0, 0),
        ("", 0, 0, 0),
    ],
)
def test_jigsaw(rollout, text, positions, adjacency, exact):
    for mode, expected in (("positions", positions), ("adjacency", adjacency), ("exact", exact)):
        for gold in ("2 1 4 3", [2, 1, 4, 3], [[2, 1], [4, 3]]):
            assert score(rollout, {"name": "jigsaw", "mode": mode}, gold, text) == expected


def test_jigsaw_shapes_and_chance(rollout):
    adjacency = {"name": "jigsaw", "mode": "adjacency"}
    assert score(rollout, adjacency, "3 1 2", "<answer>3 1 2</answer>", rows=1) == 1
    assert score(
        rollout, adjacency, [1, 2, 3, 4, 5, 6], "<answer>1 2 3 4 6 5</answer>", rows=2, columns=3
    ) == pytest.approx(3 / 7)
    assert score(
        rollout, {"name": "jigsaw", "centred": True}, "1 2 3 4", "<answer>1 2 4 3</answer>"
    ) == pytest.approx(1 / 3)
    # Both say the same picture: 2 3 1 forward is 3 1 2 backward.
    wide = {"rows": 1, "columns": 3}
    assert score(rollout, adjacency, [2, 3, 1], "<answer>1 3 2</answer>", **wide) == score(
        rollout, adjacency, [3, 1, 2], "<answer>1 3 2</answer>", **wide, question_type="backward"
    )
    with pytest.raises(ValueError, match="does not make 6 pieces"):
        score(rollout, {**adjacency, "rows": 4}, [1, 2, 3, 4, 5, 6], "<answer>1 2 3 4 6 5</answer>")
    for gold in ("1 1", "x", [], "2 3"):
        with pytest.raises(ValueError, match="permutation"):
            score(rollout, "jigsaw", gold, "<answer>1 2</answer>")


def test_correct_at_decides_where_it_is_given():
    half = "<answer>[0, 0, 50, 100]</answer>"
    assert (
        verify([0, 0, 100, 100], half, "box").correct
        and not verify([0, 0, 100, 100], half, "box", correct_at=0.51).correct
    )
    assert (
        verify(8, "<answer>7</answer>", "count", mode="relative", correct_at=0.8).correct
        and not verify(8, "<answer>7</answer>", "count").correct
    )
    boxes = [[0, 0, 10, 10], [20, 20, 40, 40]]
    one = "<answer>[[0, 0, 10, 10]]</answer>"
    assert not verify(boxes, one, "boxes").correct and verify(boxes, one, "boxes", correct_at=0.5).correct


@pytest.mark.parametrize(
    "name",
    [
        "iou",
        "mask",
        "polygon",
        "rotated_box",
        "temporal_iou",
        "keypoints",
        "detection",
        "detection_map",
        "jigsaw_question",
    ],
)
def test_overlaps_are_correct_from_one_half_on(name):
    assert build(Reward, {"name": name}).correct_at == 0.5


def test_a_squared_iou_is_compared_with_its_own_score():
    reward = build(Reward, {"name": "iou", "power": 2.0, "correct_at": 0.25})
    grade = reward.verify([0, 0, 100, 100], "<answer>[0, 0, 50, 100]</answer>")
    assert grade.score == 0.25 and grade.correct
    assert (
        not build(Reward, {"name": "iou", "power": 2.0})
        .verify([0, 0, 100, 100], "<answer>[0, 0, 50, 100]</answer>")
        .correct
    )


def test_the_edge_of_soft_rewards_is_correct():
    """A point at its radius, in the corner of its box, and a time at its tolerance count as correct, as
    without the decay."""
    point, stamp = (
        build(Reward, {"name": "point", "radius": 10, "soft": True}),
        build(Reward, {"name": "timestamp", "mode": "decay", "tolerance": 2}),
    )
    for reward, gold, hit, miss in (
        (point, [50, 50], "(60, 50)", "(61, 50)"),
        (point, [20, 20, 40, 40], "(20, 40)", "(19, 40)"),
        (stamp, 10, "12 s", "12.1 s"),
    ):
        for text, correct in ((hit, True), (miss, False)):
            grade = reward.verify(gold, f"<answer>{text}</answer>")
            assert grade.correct is correct and (grade.score >= reward.correct_at) is correct, text
