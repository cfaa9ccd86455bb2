"""Rewards without a gold answer, rerankings and table cells: values by hand, and what does not earn
anything."""

import math

import pytest
from vlrl_rewards.format.lengths import arch
from vlrl_rewards.text.group import formulas, majority
from vlrl_rewards.text.reranking import average_overlap

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward
from vlrl.types import Group

FORMED, BARE = "<think>a</think><answer>4</answer>", "4"


def score(spec, rollout):
    return build(Reward, spec)(rollout)


@pytest.mark.parametrize(
    ("x", "peak", "expected"),
    [
        (0, 0.5, 0),
        (0.25, 0.5, 0.75),
        (0.5, 0.5, 1),
        (0.75, 0.5, 0.5),
        (1, 0.5, -1),
        (0.25, 0.25, 1),
        (0.625, 0.25, 0.5),
    ],
)
def test_arch(x, peak, expected):
    assert arch(x, peak) == pytest.approx(expected)


# 16 tokens at most; the form is worth a half
@pytest.mark.parametrize(
    ("text", "tokens", "finish", "expected"),
    [
        (FORMED, 8, "stop", 1.5),
        (FORMED, 4, "stop", 1.25),
        (FORMED, 16, "stop", -0.5),
        (FORMED, 99, "stop", -0.5),
        (FORMED, 8, "length", -0.5),
        ("<think>a</think><answer>5</answer>", 8, "stop", 1.5),  # wrong: it does not know
        (BARE, 8, "stop", 0.0),
        (BARE, 16, "stop", -1.0),
        ("", 1, "stop", 0.0),
        ("<answer></answer>" * 9, 8, "stop", 0.0),
    ],
)
def test_format_length(rollout, text, tokens, finish, expected):
    made = rollout(None, text, ids=tokens, finish=finish)
    assert score({"name": "format_length", "max_tokens": 16}, made) == pytest.approx(expected)
    assert set(made.info["parts"]) == {"form", "length"}


SHORT = {"name": "reasoning_phrases", "phrases": ["wait", "let me", "thus", "so that"], "enough": 2, "n": 2}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Wait. Let me see.", 1.0),
        ("Wait: 4.", 0.5),
        ("wait thus so that let me", 1.0),
        ("It is 4.", 0.0),
        ("wait wait wait thus", 0.75),  # of four pairs of words one, (wait, wait), came before
        ("wait thus " * 9, 1 - 15 / 18),
    ],
)
def test_reasoning_phrases(rollout, said, expected):
    assert score(SHORT, rollout("4", f"{said} <answer>4</answer>")) == pytest.approx(expected)


def test_phrases_are_a_consolation(rollout):
    spec = {**SHORT, "of": {"name": "math"}}
    assert score(spec, rollout("4", "<answer>4</answer>")) == 1.0
    assert score(spec, rollout("4", "Wait. <answer>5</answer>")) == 0.5
    assert score(spec, rollout("4", "<answer>5</answer>")) == 0.0
    assert score(spec, rollout("4", "")) == score(spec, rollout("4", "<answer></answer>")) == 0.0
    released = {**spec, "takes": ["user: "]}  # math_score.py @ 083f72b: think_reward
    assert score(released, rollout("4", "Wait.")) == 0.0  # without an answer
    assert score(released, rollout("4", "Wait. User: <answer>5</answer>")) == 0.0  # 0.5 - 1
    assert score(released, rollout("4", "Wait. User:5 <answer>5</answer>")) == 0.5
    assert (
        score(released, rollout("4", "user: <answer>4</answer>")) == 1.0
        and score(spec, rollout("4", "Wait.")) == 0
    )
    assert score(released, rollout("4", "")) == 0.0
    every = build(Reward, {"name": "reasoning_phrases"})
    assert every(rollout("4", " ".join(every.phrases) + " <answer>9</answer>")) == 1.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\[a=1\] and \(b\) and $c$", {"a=1", "b", "c"}),
        ("$x$ and $x$", {"x"}),
        ("costs 5 dollars", set()),
        ("", set()),
        ("$" * 5, {""}),
    ],
)
def test_formulas(text, found):
    assert formulas(text) == found


def siblings(rollout, *texts):
    rollouts = [rollout("4", text) for text in texts]
    return Group(rollouts[0].prompt, rollouts)


def test_diversity_of_formulas(rollout):
    reward = build(Reward, {"name": "group_diversity", "by": "formulas"})
    assert reward.score_group(siblings(rollout, "$a$ $b$", "$a$ $c$ $d$", "none", "")) == pytest.approx(
        [0.5, 2 / 3, 0.0, 0.0]
    )
    assert reward.score_group(siblings(rollout, "$a$", "$a$")) == [0.0, 0.0]
    assert reward.score_group(siblings(rollout, "$a$")) == [0.0] and reward(rollout("4", "$a$")) == 0.0


def test_diversity_of_words(rollout):
    reward = build(Reward, {"name": "group_diversity"})
    same, other = "one two three four five", "six seven eight nine ten"
    assert reward.score_group(siblings(rollout, same, same, other)) == pytest.approx([0.5, 0.5, 1.0])
    assert reward.score_group(siblings(rollout, same, "", "!!")) == [1.0, 0.0, 0.0]


def log2(*places):
    return sum(1 / math.log2(place + 1) for place in places)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("[1] > [2] > [3]", 1.3),
        ("[2] > [1] > [3]", 1.0 + 0.2 + 0.1 * (0 + 1 + 1) / 3),
        ("[3] > [1] > [2]", log2(2, 3) / log2(1, 2) + 0.2 + 0.1 * (0 + 1 / 2 + 1) / 3),
        ("[1] > [2]", 0.0),
        ("[1] > [2] > [4]", 0.0),
        ("[1] > [2] > [3] > [3]", 0.0),
        ("[1] > [2] > [3], surely", 0.0),
        ("1", 0.0),
    ],
)
def test_rerank(rollout, answer, expected):
    """1 and 2 are relevant, and of the order 1, 2, 3."""
    made = rollout([1, 2, 3], f"<think>a</think><answer>{answer}</answer>", meta={"relevant": [1, 2]})
    assert score({"name": "rerank"}, made) == pytest.approx(expected)


def test_rerank_by_depth(rollout):
    """Of two relevant ones the second is outside the first two places."""
    made = rollout("abcd", "<think>x</think><answer>a > c > b > d</answer>", meta={"relevant": ["a", "b"]})
    spec = {"name": "rerank", "k": 2, "overlap_weight": 0.0}
    assert score(spec, made) == pytest.approx(1 / log2(1, 2) + 0.2 * 0.5)
    assert (
        average_overlap("acbd", "abcd") == pytest.approx((1 + 1 / 2 + 1 + 1) / 4)
        and average_overlap("", "a") == 0.0
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1] > [2] > [3]",
        "<answer>[1] > [2] > [3]</answer>",
        "<think>So</think> thus <answer>[1] > [2] > [3]</answer>",
        "<think>So</think><answer>[1] > [2] > [3]",
    ],
)
def test_rerank_wants_its_form(rollout, text):
    assert score({"name": "rerank"}, rollout([1, 2, 3], text, meta={"relevant": [1]})) == -1.0


@pytest.mark.parametrize(
    "text",
    [
        "<think></think><answer>[1] > [2] > [3]</answer>",
        "So: <think>a</think>\n<answer>[1] > [2] > [3]</answer> Done.",
        "<think>a</think><answer>[1] > [2] > [3]</answer><answer>[3] > [2] > [1]</answer>",
    ],
)
def test_rerank_finds_its_form_anywhere(rollout, text):
    assert score({"name": "rerank"}, rollout([1, 2, 3], text, meta={"relevant": [1]})) == pytest.approx(1.3)


@pytest.mark.parametrize(("gold", "relevant"), [([1, 2], []), ([1, 2], [3]), ([1, 1], [1]), (None, [1])])
def test_rerank_needs_an_order(rollout, gold, relevant):
    with pytest.raises(ValueError, match="relevant"):
        score({"name": "rerank"}, rollout(gold, "", meta={"relevant": relevant}))


CELLS = [["8,189", "yds"], ["50", "TD"], ["42", "games"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think><|8,189|><|yds|> and <|42|><|Games|></think><|11|><|int|>", 0.5),
        ("".join(f"<|{v}|><|{c}|>" for v, c in CELLS), 1.0),
        ("<|8,189|><|yds|>" * 30, 1 / 3),
        ("<|yds|><|8,189|>", 0.0),
        ("8,189 yds", 0.0),
        ("", 0.0),
        ("".join(f"<|{i}|><|TD|>" for i in range(200)), 0.0),
    ],
)
def test_table_evidence(rollout, text, expected):
    assert score({"name": "table_evidence"}, rollout("x", text, meta={"cells": CELLS})) == pytest.approx(
        expected
    )


def test_what_cannot_be_built_or_scored(rollout):
    with pytest.raises(ValueError, match="cells"):
        score({"name": "table_evidence"}, rollout("x", ""))
    for broken in (
        {"name": "format_length", "peak": 1.0},
        {"name": "reasoning_phrases", "enough": 0},
        {"name": "reasoning_phrases", "phrases": []},
    ):
        with pytest.raises(ConfigError):
            build(Reward, broken)


@pytest.mark.parametrize(
    ("plain", "turned", "expected"),
    [
        (("4", "4", "5"), ("4", "4", "6"), [1, 1, 0, 1, 1, 0]),
        (("4", "4", "5"), ("5", "5", "6"), [0, 0, 1, 0, 0, 0]),
        (("", "", ""), ("4", "4", "4"), [0] * 6),
        (("The Cup", "cup."), ("cup", "mug"), [1, 1, 1, 0]),
    ],
)
def test_views_vote_for_each_other(rollout, plain, turned, expected):
    group = siblings(rollout, *(f"<answer>{said}</answer>" if said else "" for said in (*plain, *turned)))
    for made in group.rollouts[len(plain) :]:
        made.info["paraphrased"] = True
    assert build(Reward, {"name": "cross_vote"}).score_group(group) == expected


def test_exact_votes_heed_case_and_articles(rollout):
    group = siblings(rollout, *(f"<answer>{said}</answer>" for said in ("The Cup", "cup", "cup", "mug")))
    for made in group.rollouts[2:]:
        made.info["paraphrased"] = True
    assert build(Reward, {"name": "cross_vote"}).score_group(group) == [1, 1, 1, 0]
    assert build(Reward, {"name": "cross_vote", "exact": True}).score_group(group) == [0, 1, 0, 0]


def test_alone_nobody_votes(rollout):
    assert build(Reward, {"name": "cross_vote"}).score_group(
        siblings(rollout, "<answer>4</answer>", "4 or 5")
    ) == [0.0, 0.0]
    assert majority(["", "b", "a", "a"]) == "a" and majority(["", ""]) == ""
