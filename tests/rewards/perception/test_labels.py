"""Numbers with tolerance, several labels, trees, open sets, jigsaw questions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vlrl_rewards.math.closeness import Angle, Closeness, SeveralCounts
from vlrl_rewards.puzzles.jigsaw import JigsawQuestion, relation
from vlrl_rewards.recognition.classification import OpenSet
from vlrl_rewards.recognition.labels import Hierarchy, MultiLabel


def tag(text):
    return f"<answer>{text}</answer>"


@pytest.mark.parametrize(
    ("text", "decayed", "relative", "mra"),
    [
        (tag("10"), 1, 1, 1),
        (tag("about 10 m"), 1, 1, 1),
        (tag("10cm"), 1, 1, 1),
        (tag("3D"), 0, 0, 0),
        (tag("12"), math.exp(-1), 0.8, 0.6),
        (tag("20"), math.exp(-5), 0, 0),
        (tag("10 or 12"), 0, 0, 0),
        ("<think>10</think>", 0, 0, 0),
        ("", 0, 0, 0),
        (tag("far"), 0, 0, 0),
        (tag("1e99"), 0, 0, 0),
        (tag("9 10 11 12"), 0, 0, 0),
    ],
)
def test_closeness(text, decayed, relative, mra):
    for mode, expected in (("decay", decayed), ("relative", relative), ("mra", mra)):
        assert Closeness(mode=mode).verify(10, text).score == pytest.approx(expected, abs=1e-6)


def test_closeness_options():
    distance = Closeness(mode="distance")
    found = [
        distance.verify(gold, tag(said)).score
        for gold, said in ((4, "4"), (4, "4.2"), (4, "5"), (4, "99"), (0, "0.5"))
    ]
    assert found == pytest.approx([1.0, 1 - 0.1 - 0.025, 1 - 0.5 - 0.125, 0.0, 1 - 0.25 - 0.5], abs=1e-6)
    assert Closeness(mode="absolute", rate=1).verify(0, tag("2")).score == pytest.approx(math.exp(-2))
    assert Closeness(mode="relative").verify(0, tag("0")).score == 1
    assert (
        Closeness(correct_within=0.1).verify(10, tag("11")).correct
        and not Closeness().verify(10, tag("11")).correct
    )
    with pytest.raises(ValueError, match="rate"):
        Closeness(rate=0)
    with pytest.raises(ValueError, match="number"):
        Closeness().verify("far", "")


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 1000),
    st.integers(-500, 500),
    st.integers(-500, 500),
    st.sampled_from(["decay", "relative", "mra"]),
)
def test_closer_is_never_worse(gold, first, second, mode):
    near, far = sorted((abs(first), abs(second)))
    reward = Closeness(mode=mode)
    scores = [reward.verify(gold, tag(gold + d)).score for d in (near, far)]
    assert 0 <= scores[1] <= scores[0] + 1e-12 <= 1 + 1e-12
    assert reward.verify(gold, tag(gold)).score == 1


@pytest.mark.parametrize(
    ("text", "exact", "linear"),
    [
        (tag("350"), 0, 17 / 18),
        (tag("0°"), 1, 1),
        (tag("360 degrees"), 1, 1),
        (tag("180"), 0, 0),
        (tag("0, 90, 180 or 270"), 0, 0),
        ("", 0, 0),
        (tag("left"), 0, 0),
    ],
)
def test_angle(text, exact, linear):
    assert Angle().verify(0, text).score == exact
    assert Angle(mode="linear").verify(0, text).score == pytest.approx(linear)


def test_angle_period():
    assert Angle(period=180).verify(10, tag("190")).score == 1
    assert Angle(mode="decay", tolerance=10).verify(10, tag("20")).score == pytest.approx(math.exp(-1))
    with pytest.raises(ValueError, match="tolerance"):
        Angle(tolerance=-1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2, 4, 0", 1),
        ("1,4,0", 5 / 6),
        ("2,4,1", 2 / 3),
        ("2,4", 0),
        ("2,4,0,0", 0),
        ("many", 0),
        ("", 0),
        ("2,4,-1", 0),
    ],
)
def test_counts(text, expected):
    assert SeveralCounts().verify([2, 4, 0], tag(text)).score == pytest.approx(expected)
    assert SeveralCounts(exact=True).verify("2,4,0", tag(text)).score == float(expected == 1)


# --- labels -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "f1", "jaccard"),
    [
        ("cat, dog", 1, 1),
        ("Dog and cat", 1, 1),
        ('["cat", "dog"]', 1, 1),
        ("- cat\n- dog", 1, 1),
        ("cat", 2 / 3, 0.5),
        ("cat, dog, cow, pig", 2 / 3, 0.5),
        ("cat, cat, cat", 2 / 3, 0.5),
        ("cow", 0, 0),
        ("none", 0, 0),
        ("", 0, 0),
        ("?", 0, 0),
        ("catdog", 0, 0),
    ],
)
def test_multi_label(text, f1, jaccard):
    assert MultiLabel().verify(["cat", "dog"], tag(text)).score == pytest.approx(f1)
    assert MultiLabel(metric="jaccard").verify("cat, dog", tag(text)).score == pytest.approx(jaccard)
    assert MultiLabel(metric="exact").verify({"cat", "dog"}, tag(text)).score == float(f1 == 1)


def test_multi_label_spam_nothing_and_aliases():
    everything = ", ".join(f"thing {i}" for i in range(50)) + ", cat, dog"
    assert MultiLabel(metric="recall").verify(["cat", "dog"], tag(everything)).score == 0
    assert MultiLabel().verify(["cat", "dog"], tag(everything)).score == pytest.approx(4 / 54)
    assert (
        MultiLabel().verify([], tag("none")).score == 1
        and MultiLabel().verify([], tag("cat")).score == MultiLabel().verify([], "").score == 0
    )
    assert MultiLabel(aliases={"cat": ("feline",)}).verify(["cat"], tag("feline")).score == 1
    assert MultiLabel().verify(["cat", "dog"], tag("A, C"), choices=("cat", "cow", "dog")).score == 1


TREE = {"animal": "", "dog": "animal", "cat": "animal", "poodle": "dog", "plant": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("poodle", 1),
        ("dog", 0.8),
        ("animal", 0.5),
        ("cat", 0.4),
        ("plant", 0),
        ("unicorn", 0),
        ("", 0),
        ("poodle dog cat", 0),
    ],
)
def test_hierarchy(text, expected):
    assert Hierarchy(parents=TREE).verify("poodle", tag(text)).score == pytest.approx(expected)


def test_hierarchy_broken_tree():
    with pytest.raises(ValueError, match="not in the tree"):
        Hierarchy(parents=TREE).verify("wolf", "")
    with pytest.raises(ValueError, match="ancestor"):
        Hierarchy(parents={"a": "b", "b": "a"}).verify("a", "")


def test_open_set():
    reward = OpenSet(abstain=0.2)
    assert [reward.verify("cat", tag(t)).score for t in ("cat", "dog", "unknown", "")] == [1, 0, 0.2, 0]
    assert [
        reward.verify("unknown", tag(t)).score for t in ("None of the above", "dog", "", "cat or unknown")
    ] == [1, 0, 0, 0]
    with pytest.raises(ValueError, match="abstain"):
        OpenSet(abstain=1.0)


# --- jigsaw questions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gold", "kind", "text", "expected"),
    [
        ("B", "pair", "B", 1),
        ("B", "multiple", "(b)", 1),
        ("B", "letter", "right of", 1),
        ("B", "pair", "A or B", 0),
        ("B", "pair", "Because I see it, so B", 0),
        ("B", "pair", "A B C D", 0),
        (3, "single", "3", 1),
        (3, "single", "position 3", 1),
        (3, "single", "3 4", 0),
        (3, "single", "1 2 3 4", 0),
        ("upper left", "relation", "to the top left", 0),
        ("upper left", "relation", "top left", 1),
        ("left", "relation", "right", 0),
        ([0, 0, 10, 10], "box", "[0, 0, 10, 5]", 0.5),
        ([0, 0, 10, 10], "box", "[0,0,10,10] [5,5,9,9]", 0),
        ([0, 0, 10, 10], "box", "here", 0),
        ("B", "pair", "", 0),
        ([2, 1, 4, 3], "full", "2 1 3 4", 0.5),
        ([2, 1, 4, 3], "backward", "2 1 4 3 1", 0),
        (3, "single", "", 0),
    ],
)
def test_jigsaw_questions(gold, kind, text, expected):
    scene = {"choices": ("left of", "right of"), "meta": {"answer_type": kind}}
    assert JigsawQuestion().verify(gold, tag(text), **scene).score == expected


def test_jigsaw_relations_and_errors():
    assert [relation(a, b, 3) for a, b in ((1, 2), (2, 1), (1, 4), (5, 1), (3, 4))] == [
        "left",
        "right",
        "above",
        "lower right",
        "apart",
    ]
    with pytest.raises(ValueError, match="answer_type"):
        JigsawQuestion().verify("B", "")
    for gold, kind in (
        ("BB", "letter"),
        ("x", "digit"),
        ("sideways", "relation"),
        ([[0, 0, 1, 1], [2, 2, 3, 3]], "box"),
    ):
        with pytest.raises(ValueError, match="answer"):
            JigsawQuestion(kind_of=kind).verify(gold, "")
