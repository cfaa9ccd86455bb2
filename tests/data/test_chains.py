"""`lab_chains`: chains of additions, demonstrated in several styles."""

import re

import pytest

from vlrl.config import load
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward, Source
from vlrl.types import Prompt, Rollout, Row


def make(name, **options):
    return build(Source, {"name": name, **options})()


def chain(row):
    """Start, {letter: addend} and modulus, read from the question."""
    text, modulus = re.fullmatch(r"(.+) mod (\d+)=", row.question).groups()
    start, *addends = text.split(",")
    return int(start), {term[0]: int(term[2:]) for term in addends}, int(modulus)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("style", ["guess", "running", "stepwise", "checked"])
def test_demonstrations_of_every_style_are_correct(style, shuffled):
    orders, repeated = set(), 0
    for row in make("lab_chains", count=60, styles=[style], shuffled=shuffled, most=4):
        value, addends, modulus = chain(row)
        assert (
            row.answer == (value + sum(addends.values())) % modulus
            and 2 <= row.meta["terms"] == len(addends) <= 4
        )
        working, said = re.fullmatch(r"<think>(.+)</think><answer>(\d+)</answer>", row.target).groups()
        assert int(said) == row.answer and row.meta["style"] == style
        if style == "guess":
            assert working == said
            continue
        written = re.findall(r"\??([a-h])(?:(\d+)\+(\d+)=)?(\d+)", working)
        steps = [step for i, step in enumerate(written) if not i or step != written[i - 1]]
        repeated += len(written) - len(steps)
        orders.add(tuple(step[0] for step in steps))
        assert sorted(step[0] for step in steps) == sorted(addends)
        for letter, before, addend, after in steps:
            assert style == "running" or (int(before), int(addend)) == (value, addends[letter])
            value = (value + addends[letter]) % modulus
            assert int(after) == value
    assert (len(orders) > 6) == (shuffled and style != "guess") and (repeated > 20) == (style == "checked")


def test_splits_of_chains_are_disjoint():
    train, heldout = (
        {row.question for row in make("lab_chains", split=split, count=600)} for split in ("train", "heldout")
    )
    assert not train & heldout and min(len(train), len(heldout)) > 500


@pytest.mark.parametrize(
    ("text", "paid"),
    [
        ("<think>a27+5=32b32+3=35</think><answer>35</answer>", (1, 1)),
        ("<think>35</think><answer>35</answer>", (1, 1)),
        ("<think>a27+5=31b31+3=34</think><answer>34</answer>", (0, 1)),
        ("<think>a27+5=32b32+3=35", (0, 0)),
        ("<think>a?a?a?</think><answer>a</answer>", (0, 1)),
        ("<answer>35</answer><answer>41</answer>", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_chains_reward_only_the_last_sum(text, paid):
    rewards = load(["tasks/lab_chains"]).tree["rewards"]
    row = Row("0", "27,a+5,b+3 mod 100=", 35, task="chains")
    rollout = Rollout(Prompt(row, []), [], text)
    assert tuple(build(Reward, rewards[slot])(rollout) for slot in ("chains", "format")) == paid
