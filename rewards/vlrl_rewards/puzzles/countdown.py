"""Countdown: steps that join all numbers to the goal."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.parsing import last_answer

STEP = re.compile(r"(\d{1,9})([+*-])(\d{1,9})=(\d{1,18})")
MAX_STEPS = 16


def reaches(text: str, numbers: list[int], goal: int) -> bool:
    """Whether the steps of a text ("3+4=7, 7*2=14") are right, use every number once, and end at the goal."""
    parts = [part.strip().replace(" ", "") for part in text.split(",")]
    left = list(numbers)
    if len(parts) > MAX_STEPS:
        return False
    for part in parts:
        found = STEP.fullmatch(part)
        if found is None:
            return False
        a, b, said = int(found[1]), int(found[3]), int(found[4])
        if {"+": a + b, "-": a - b, "*": a * b}[found[2]] != said:
            return False
        for number in (a, b):
            if number not in left:
                return False
            left.remove(number)
        left.append(said)
    return left == [goal]


@register("countdown")
@dataclass(frozen=True, kw_only=True)
class Countdown(Reward):
    """Countdown's check: 1 if the answer's steps join all of `row.meta.numbers` to `row.meta.goal`, else 0.

    Any right sequence counts, not the demonstration's alone. Paper: arXiv:2505.24273, sec. 3 (rule checkers).
    Edge: no answer: 0. Raises KeyError for a row without numbers or goal.
    """

    def __call__(self, rollout: Rollout) -> float:
        meta = rollout.row.meta
        return float(reaches(last_answer(rollout.text), list(meta["numbers"]), int(meta["goal"])))
