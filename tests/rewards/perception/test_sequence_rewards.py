"""Captions, plans, mazes, verdict lists, processes, groups."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vlrl_rewards.boxes.group import BoxAgreement, IouHard
from vlrl_rewards.gui.grounding import Blink
from vlrl_rewards.puzzles.maze import Maze
from vlrl_rewards.puzzles.plans import PlanSteps, alignment
from vlrl_rewards.text.captions import Caption, cider
from vlrl_rewards.text.mentions import Keywords, ObjectsNamed, words_of
from vlrl_rewards.text.process import ProcessOrder, section
from vlrl_rewards.text.yes_no import TrueFalse

from vlrl.plugins.scoring import Answer, Response, Unread


def tag(text):
    return f"<answer>{text}</answer>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A red bus stands on the wet street.", 1),
        ("Red buses in a street.", 1),
        ("A red car stands on the street.", 2 / 3),
        ("red bus street", 0),
        ("busy streetwise redness", 0),
        ("", 0),
        ("A tree.", 0),
        ("A red bus stands on the wet street. " + "It is a nice day today. " * 100, 400 / 608),
    ],
)
def test_keywords(text, expected):
    assert Keywords().verify(["red", "bus", "street"], tag(text)).score == pytest.approx(expected)


def test_objects_named():
    reward = ObjectsNamed(vocabulary=("dog", "cat", "car", "red bus"), synonyms={"dog": ("puppy",)})
    for text, expected in (
        ("A puppy near a red bus", 1),
        ("A dog", 2 / 3),
        ("dog cat car red bus", 2 / 3),
        ("a hotdog", 0),
        ("", 0),
        ("A bus", 0),
    ):
        assert reward.verify(["dog", "red bus"], tag(text)).score == pytest.approx(expected), text
    assert reward.verify([], tag("An empty field.")).score == 1 and reward.verify([], "").score == 0
    with pytest.raises(ValueError, match="wolf"):
        reward.verify(["wolf"], "")


def test_cider_by_hand():
    reference = ["a", "b", "c", "d", "e"]
    assert cider(reference, [reference]) == pytest.approx(1)
    one = ["a", "b", "c", "d", "x"]  # 4, 3, 2, 1 of 5, 4, 3, 2 n-grams agree
    assert cider(one, [reference]) == pytest.approx((4 / 5 + 3 / 4 + 2 / 3 + 1 / 2) / 4)
    assert cider(reference + ["f"], [reference]) == pytest.approx(
        math.exp(-1 / 72) * (5 / math.sqrt(30) + 4 / math.sqrt(20) + 3 / math.sqrt(12) + 2 / math.sqrt(6)) / 4
    )
    assert cider(["x"], [reference], {("a",): 2.0}) == 0
    assert Caption().verify(["a dog runs", "the dog is running"], tag("a dog runs")).score == pytest.approx(1)
    assert (
        0.3
        < Caption(references="mean").verify(["a dog runs", "the dog is running"], tag("a dog runs")).score
        < 0.6
    )
    assert Caption().verify("a dog runs", tag("a dog runs " * 30)).score < 1e-3
    for text in ("", tag(""), tag("???"), "<think>a dog runs</think>"):
        assert Caption().verify("a dog runs", text).score == 0
    with pytest.raises(ValueError, match="caption"):
        Caption().verify("", "")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=8),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=8),
)
def test_cider_bounds(said, reference):
    assert 0 <= cider(said, [reference]) <= 1
    assert cider(reference, [reference]) == pytest.approx(1)


# --- steps --------------------------------------------------------------------------------------------------

MAZE = ["S.#", "#..", "##G"]


@pytest.mark.parametrize(
    ("text", "reach", "progress"),
    [
        ("right, down, right, down", 1, 1),
        ("RDRD", 1, 1),
        ("→↓→↓", 1, 1),
        ('["right", "down", "right", "down"]', 1, 1),
        ("east south east south", 1, 1),
        ("right, down", 0, 0.25),
        ("right, right, down, down", 0, 0.125),
        ("down", 0, 0),
        ("right, down, right, down, up", 0, 0.375),
        ("right, down, right, down or down", 0, 0),
        ("up down " * 100, 0, 0),
        ("go to the goal", 0, 0),
        ("", 0, 0),
    ],
)
def test_maze(text, reach, progress):
    assert Maze().verify(MAZE, tag(text)).score == reach
    assert Maze(mode="progress").verify("\n".join(MAZE), tag(text)).score == pytest.approx(progress)


def test_maze_without_a_way():
    for broken in (["S#G"], ["S."], "x", ["SSG"], None):
        with pytest.raises(ValueError, match="maze"):
            Maze().verify(broken, "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('["find a cup", "pick up the cup", "put down"]', 1),
        ("find a cup\npick up the cup\nput down", 1),
        ('{"executable_plan": [{"action_id": 3, "action_name": "find a cup"}]}', 1 / 6),
        ('["find a cup", "pick up the cup"]', 0.5),
        ('["pick up the cup", "find a cup", "put down"]', 0),
        ('["find a cup", "pick up the cup", "put down", "dance"]', 0.75),
        ("[]", 0),
        ("", 0),
        ('["find a cup"] ["pick up the cup"]', 0),
        ("I would find a cup", 0),
    ],
)
def test_plan(text, expected):
    assert PlanSteps().verify(
        ["find a cup", "pick up the cup", "put down"], tag(text)
    ).score == pytest.approx(expected)


@pytest.mark.parametrize(
    ("gold", "text", "expected"),
    [
        (["take cup"], '["take cup"]', 1.0),
        (["take cup"], '["take cup", "wash cup"]', 0.75),
        (["take cup"], '["wash cup", "take cup"]', -0.25),
        (["take cup"], "[]", 0.0),
        (["take cup", "wash cup"], '["take cup", "wash cup", "dance"]', 1.0),
        (["take cup", "wash cup"], '["dance", "take cup", "wash cup"]', 0.0),
    ],
)
def test_further_steps_cost_in_plans_of_one_step_alone(gold, text, expected):
    reward = PlanSteps(single=True)
    assert reward.verify(gold, tag(text)).score == pytest.approx(expected)
    assert reward.verify(gold, "<think>cut").score == 0  # released: unreadable is 0


@pytest.mark.parametrize(
    ("text", "exact", "share"),
    [
        ("T F F", 1, 1),
        ("TFF", 1, 1),
        ("same, different, different", 1, 1),
        ("T T F", 0, 2 / 3),
        ("T F", 0, 0),
        ("T F F F", 0, 0),
        ("T or F", 0, 0),
        ("", 0, 0),
    ],
)
def test_true_false(text, exact, share):
    assert TrueFalse().verify("TFF", tag(text)).score == exact
    assert TrueFalse(mode="share").verify([True, False, False], tag(text)).score == pytest.approx(share)


def test_process_order():
    states = ["the door opens", "a man walks in", "he sits down"]
    scene = {"meta": {"states": states}}
    told = "<think>The door opens. A man walks in. He sits down.</think><answer>A</answer>"
    assert ProcessOrder().verify("A", told, **scene).score == pytest.approx(1)
    backwards = "<think>He sits down. A man walks in. The door opens.</think>"
    assert ProcessOrder().verify("A", backwards, **scene).score < 0.5
    stuffed = "<think>" + "The door opens. A man walks in. He sits down. " * 20 + "</think>"
    assert ProcessOrder().verify("A", stuffed, **scene).score == pytest.approx(0.1)
    for text in (
        "",
        "<think></think>",
        "The door opens. A man walks in. He sits down.",
        "<think>unclosed the door opens",
    ):
        assert ProcessOrder().verify("A", text, **scene).score == 0
    assert alignment(["a b", "c d"], ["a b", "c d"]) == 1 and alignment([], ["a"]) == 0
    with pytest.raises(ValueError, match="states"):
        ProcessOrder().verify("A", told)


def test_blink():
    gold = [0, 0, 10, 10]
    for boxes, expected in (
        ("[[0,0,10,9],[50,50,60,60]]", 1),
        ("[[0,0,10,9],[0,0,10,10]]", 0),
        ("[[0,0,10,10],[0,0,10,5]]", 0),  # IoU 0.5: one suppresses the other
        ("[[0,0,10,10],[0,0,10,4]]", 1),
        ("[[50,50,60,60]]", 0),
        ("[]", 0),
        ("none", 0),
    ):
        assert Blink().verify(gold, f"<blink>{boxes}</blink><think></think><link>x</link>").score == expected
    many = [[20 * i, 0, 20 * i + 10, 10] for i in range(9)]
    assert (
        Blink().verify(gold, f"<blink>{many}</blink>").score == 0
        and Blink(most=9).verify(gold, f"<blink>{many}</blink>").score == 1
    )
    assert Blink().verify([], "<blink>[]</blink>").score == 1 and Blink().verify(gold, "").score == 0
    assert section(Response("<A>x</a>"), "a") == Answer("x", 3, 4, "section")
    for text in ("<a>x</a><a>y</a>", "</a>x<a>", "<a></a>"):
        with pytest.raises(Unread):
            section(Response(text), "a")


# --- groups -------------------------------------------------------------------------------------------------


def test_box_agreement(group):
    texts = [
        "<answer>[0,0,10,10]</answer>",
        "<answer>[0,0,10,10]</answer>",
        "<answer>[0,0,10,5]</answer>",
        "<answer>no idea</answer>",
        "<answer>[0,0,10,10][1,1,2,2]</answer>",
    ]
    assert BoxAgreement().score_group(group(None, texts)) == pytest.approx([0.75, 0.75, 0.5, 0, 0])
    # Votes: 3 on the upper half, 2 on the lower one.
    assert BoxAgreement(mode="votes").score_group(group(None, texts)) == pytest.approx(
        [5 / 6, 5 / 6, 1, 0, 0]
    )
    assert BoxAgreement().score_group(group(None, texts[:1])) == [0]
    with pytest.raises(ValueError, match="group"):
        BoxAgreement()(group(None, texts).rollouts[0])


def test_hard_prompts_weigh_more(group):
    texts = ["<answer>[0,0,10,10]</answer>", "<answer>[0,0,10,5]</answer>", ""]
    sample = group([0, 0, 10, 10], texts, size=(20, 10))
    assert IouHard().score_group(sample) == pytest.approx([math.exp(0.5), math.exp(0.5) / 2, 0])
    assert IouHard(by="power", k=2).score_group(sample) == pytest.approx([0.55**2, 0.55**2 / 2, 0])
    assert IouHard(by="log").score_group(sample) == pytest.approx([-math.log(0.52), -math.log(0.52) / 2, 0])
    assert IouHard(by="size").score_group(sample) == pytest.approx([0.5, 0.25, 0])
    with pytest.raises(ValueError, match="size"):
        IouHard(by="size").score_group(group([0, 0, 10, 10], texts))


def test_words():
    assert words_of("It's a Red-Bus, 2x!") == ["it's", "a", "red", "bus", "2x"]
