"""Process accuracy of sums: each gold step has to be stated as it is, by hand."""

from __future__ import annotations

import pytest
from vlrl_data.lab.chains import LabChains

from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward

GOLD = ["a27+5=32", "b32+3=35", "c35+4=39"]


def score(thinking: str, gold: object = GOLD) -> float:
    response = f"<think>{thinking}</think><answer>39</answer>"
    return build(Reward, {"name": "stated_steps"}).verify("39", response, meta={"steps": gold}).score


@pytest.mark.parametrize(
    ("thinking", "wanted"),
    [
        ("a27+5=32b32+3=35c35+4=39", 1.0),
        ("a 27 + 5 = 32, then c 35+4=39 and b 3+32=35", 1.0),  # any order, and 3 + 32 uses the same numbers
        ("a27+5=32b32+3=35", 2 / 3),
        ("a27+5=31b31+3=35c35+4=39", 1 / 3),  # b uses what a got wrong
        ("a27+5=32?a27+5=31b32+3=35c35+4=39", 2 / 3),  # the last statement counts
        ("a27+5=31?a27+5=32b32+3=35c35+4=39", 1.0),
        ("a32b35c39", 0.0),  # values without what they come from
        ("39", 0.0),
        ("", 0.0),
        ("z1+1=2" * 5000 + "a27+5=32", 1 / 3),
        ("abc" * 5000, 0.0),
    ],
)
def test_share_of_gold_steps_stated(thinking: str, wanted: float) -> None:
    assert score(thinking) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "response", ["", "a27+5=32b32+3=35c35+4=39", "<think>a27+5=32", "<answer>a27+5=32</answer>"]
)
def test_only_closed_thinking_counts(response: str) -> None:
    assert build(Reward, {"name": "stated_steps"}).verify("39", response, meta={"steps": GOLD}).score == 0.0


@pytest.mark.parametrize("gold", [[], None, ["a+b"], ["a27+5=32", "a27+6=33"], [7]])
def test_rows_without_steps_are_refused(gold: object) -> None:
    with pytest.raises(ValueError, match=r"row.meta\['steps'\]"):
        score("a27+5=32", gold)


def test_every_demonstration_of_chains_that_writes_its_steps_states_them() -> None:
    reward = build(Reward, {"name": "stated_steps"})
    seen = {row.meta["style"]: [] for row in rows()}
    for row in rows():
        seen[row.meta["style"]].append(reward.verify(row.answer, row.target, meta=row.meta).score)
    assert set(seen["stepwise"]) == set(seen["checked"]) == {1.0} and set(seen["guess"]) == {0.0}


def rows():
    return [LabChains(split="train", seed=0, count=60).row(index) for index in range(60)]
