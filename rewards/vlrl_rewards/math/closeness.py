"""Rewards for measured numbers (distances, sizes, angles): closeness in place of equality."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded, members
from vlrl_rewards.kinds import verifier
from vlrl_rewards.math.written_numbers import numbers_in, one_number
from vlrl_rewards.recognition.counting import decay, gold_number, mean_relative_accuracy, relative_accuracy


@verifier("closeness")
@register("closeness")
@dataclass(frozen=True, kw_only=True)
class Closeness(Graded):
    """Closeness of a measured number to the gold number.

        decay:     exp(-rate |x - g| / (|g| + eps))
        relative:  max(0, 1 - |x - g| / |g|)
        mra:       mean over t of 1[|x - g| / |g| <= 1 - t]
        absolute:  exp(-rate |x - g|)
        distance:  1 - 1/2 min(|x - g|, 1) - 1/2 min(|x - g| / (|g| + 1e-6), 1)

    Paper: M2-Reasoning, arXiv:2507.08306 (decay); Video-R1, arXiv:2503.21776 (relative, its regression
    reward); Thinking in Space, arXiv:2412.14171, eq. 1 (mra); RandomCalculation, arXiv:2507.10532, eq. 2
    (distance). Deviates: rewards/DEVIATIONS.md. Edge: no number, or several different ones: 0. Gold 0:
    relative and mra pay only the answer 0. Range [0, 1].
    """

    mode: Literal["decay", "relative", "mra", "absolute", "distance"] = "decay"
    rate: float = 5.0
    correct_within: float = 0.05
    correct_at: float = 0.7788

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate: {self.rate} must be above 0")

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = gold_number(gold)
        answer = self.committed(response)
        number = one_number(answer.text, answer.tagged)
        if number is None or not math.isfinite(number):
            raise Unread("the answer does not commit to one number", answer)
        rules = {
            "decay": lambda: decay(number, target, self.rate),
            "relative": lambda: relative_accuracy(number, target),
            "mra": lambda: mean_relative_accuracy(number, target),
            "absolute": lambda: math.exp(-min(self.rate * abs(number - target), 700.0)),
            "distance": lambda: (
                1.0
                - 0.5 * min(abs(number - target), 1.0)
                - 0.5 * min(abs(number - target) / (abs(target) + 1e-6), 1.0)
            ),
        }
        correct = abs(number - target) <= self.correct_within * abs(target)
        return self.scored(answer, rules[self.mode](), correct, f"{number:g} for {target:g}", f"{number:g}")


@verifier("angle", "rotation")
@register("angle")
@dataclass(frozen=True, kw_only=True)
class Angle(Graded):
    """Closeness of an angle to the gold angle.

        exact:   1[d <= tolerance]
        linear:  max(0, 1 - d / (period / 2))
        decay:   exp(-d / tolerance)

    d is the distance on a circle of `period` degrees.
    Paper: rotation prediction, arXiv:1803.07728 (task, as a choice of 0, 90, 180, 270); as a reward: vlrl
    original.
    `period` 360 for directions, 180 for lines. Edge: no number, several different ones: 0; 370 equals 10.
    Range [0, 1]. Units: degrees.
    """

    mode: Literal["exact", "linear", "decay"] = "exact"
    tolerance: float = 1.0
    period: float = 360.0

    def __post_init__(self) -> None:
        if self.tolerance <= 0 or self.period <= 0:
            raise ValueError(
                f"tolerance, period: must be above 0 degrees, got {self.tolerance} and {self.period}"
            )

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = gold_number(gold)
        answer = self.committed(response)
        number = one_number(answer.text.replace("°", " degrees"), answer.tagged)
        if number is None:
            raise Unread("the answer does not commit to one angle", answer)
        away = abs((number - target + self.period / 2) % self.period - self.period / 2)
        rules = {
            "exact": float(away <= self.tolerance),
            "linear": max(0.0, 1 - 2 * away / self.period),
            "decay": math.exp(-min(away / self.tolerance, 700)),
        }
        return self.scored(
            answer, rules[self.mode], away <= self.tolerance, f"{away:g} degrees off", f"{number:g}"
        )


@verifier("counts")
@register("counts")
@dataclass(frozen=True, kw_only=True)
class SeveralCounts(Graded):
    """Counts of several kinds of objects.

        r = mean over kinds of max(0, 1 - |n_k - g_k| / g_k)
        r = 1[all correct]   (with `exact`)

    For g_k = 0 only n_k = 0 scores.
    Paper: VideoSSR, arXiv:2511.06281 (object counting: three kinds of shapes). Deviates: none known; a kind
    of gold count 0 is ours. Edge: a different number of counts, or one that is no count (2.5, -1): 0. Range
    [0, 1].
    Gold: [3, 1, 2] or "3,1,2"; answer: the counts in the asked order.
    """

    exact: bool = False

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        numbers = (
            [n for n, _ in numbers_in(gold)]
            if isinstance(gold, str)
            else [gold_number(g, whole=True) for g in members(gold)]
        )
        if not numbers or not all(n >= 0 and n == int(n) for n in numbers):
            raise GoldError(f"answer: {gold!r} is not a list of counts; give [3, 1, 2]")
        target = numbers
        answer = self.committed(response)
        said = [n for n, _ in numbers_in(answer.text)] if len(answer.text) < 2000 else []
        if len(said) != len(target) or not all(n >= 0 and n == int(n) for n in said):
            raise Unread(f"{len(said)} counts instead of {len(target)}", answer)
        right = said == target
        mean = sum(relative_accuracy(n, g) for n, g in zip(said, target, strict=True)) / len(target)
        return self.scored(
            answer, float(right) if self.exact else mean, right, "counts", " ".join(f"{n:g}" for n in said)
        )
