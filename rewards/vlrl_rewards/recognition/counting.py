"""Counting reward, and the measures of closeness of two numbers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded, unreadable
from vlrl_rewards.kinds import verifier
from vlrl_rewards.literals import MAX_CHARS
from vlrl_rewards.math.written_numbers import one_number

_SHARE = re.compile(r"[0-9]\s?(?:%|percent\b)", re.IGNORECASE)
MRA_THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())


def mean_relative_accuracy(value: float, gold: float) -> float:
    """Mean relative accuracy (MRA), in [0, 1]: share of the thresholds t in {0.50, 0.55, ..., 0.95} with
    |value - gold| / |gold| <= 1 - t.

    In binary floating point, as the benchmark computes it: 8 for 10 scores 0.6, since 1 - 0.8 is a little
    below 0.2.
    Source: Thinking in Space (VSI-Bench), arXiv:2412.14171, eq. 1, which prints <; its released code has <=
    (vision-x-nyu/thinking-in-space, lmms_eval/tasks/vsibench/utils.py, e6a72f39). Deviates: |gold| in place
    of gold; for gold 0 only 0 scores 1.
    """
    if gold == 0:
        return float(value == 0)
    error = abs(value - gold) / abs(gold)
    return sum(error <= 1 - t for t in MRA_THRESHOLDS) / len(MRA_THRESHOLDS)


def relative_accuracy(value: float, gold: float) -> float:
    """max(0, 1 - |value - gold| / |gold|), in [0, 1]; for gold 0 only the value 0 scores 1."""
    return float(value == 0) if gold == 0 else max(0.0, 1.0 - abs(value - gold) / abs(gold))


def decay(value: float, gold: float, rate: float, eps: float = 1e-6) -> float:
    """exp(-rate |value - gold| / (|gold| + eps)), in [0, 1]."""
    return math.exp(-min(rate * abs(value - gold) / (abs(gold) + eps), 700.0))


def gold_number(gold: Any, whole: bool = False) -> float:
    """The gold number. Raises ValueError unless there is exactly one finite number; with `whole` it must be
    an integer."""
    number: float | None = None
    if isinstance(gold, str):
        number = one_number(gold, tagged=True)
    elif isinstance(gold, (int, float)) and not isinstance(gold, bool) and abs(gold) < 1e300:
        number = float(gold)
    if number is None or not math.isfinite(number) or (whole and number != int(number)):
        raise GoldError(
            f"answer: {gold!r} is not a {'count' if whole else 'number'}; give one "
            f"{'whole ' if whole else ''}number"
        )
    return number


@verifier("count", "counting")
@register("counting")
@dataclass(frozen=True, kw_only=True)
class Counting(Graded):
    """Counting accuracy: the predicted number n against the gold number n*.

        exact: 1[n = n*];  relative: max(0, 1 - |n - n*| / n*);  mra: mean over t of 1[|n - n*| / n* <= 1 - t]

    Paper: mra of Thinking in Space, arXiv:2412.14171, eq. 1; relative as the regression reward of Video-R1,
    arXiv:2503.21776. Deviates: Video-R1 adds 1e-9 to numerator and denominator; here, for gold 0, only the
    answer 0 scores 1.
    Edge: no number, several different numbers, bounds ("at least 7"), shares ("7%") or a fraction of an
    object score 0. Number words are read ("twenty-one"), and "there are no cars" is the count 0. Range [0,
    1].
    """

    mode: Literal["exact", "relative", "mra"] = "exact"

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = gold_number(gold, whole=True)
        answer = self.committed(response)
        number = one_number(answer.text, answer.tagged)
        if number is None:
            if len(answer.text) > MAX_CHARS:
                raise unreadable("number", answer)
            raise Unread("the answer does not commit to one number", answer)
        if number != int(number) or number < 0 or _SHARE.search(answer.text):
            return self.wrong(answer, "not a count", str(number))
        rules = {
            "exact": lambda n, g: float(n == g),
            "relative": relative_accuracy,
            "mra": mean_relative_accuracy,
        }
        return self.scored(
            answer,
            rules[self.mode](number, target),
            number == target,
            f"{number:g} for {target:g}",
            f"{number:g}",
        )
