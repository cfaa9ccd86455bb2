"""Rewards for dates: closeness in months, and two dates with the gap between them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from vlrl.registry import register
from vlrl.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.dates import read_date
from vlrl_rewards.parsing import last_answer

_DATE = re.compile(r"(?<![\d-])\d{4}-\d{1,2}(?![\d-])")
_GAP = re.compile(r"(?<![\d-])\d{1,5}(?![\d-])")


def months(date: tuple[int, int, int]) -> int:
    """Months since year 0."""
    return 12 * date[0] + date[1] - 1


def gold_months(rollout: Rollout, gold: Any) -> int:
    """A gold date in months. Raises ValueError if it is none."""
    date = read_date(str(gold))
    if date is None:
        raise ValueError(f"row {rollout.row.id!r}: {gold!r} is not a date such as 2016-05")
    return months(date)


@register("date_decay")
@dataclass(frozen=True, kw_only=True)
class DateDecay(Reward):
    """r = exp(-rate |m - g|), m and g the months of the answered and of the gold date; 0 without a date.

    Paper: Time-R1, arXiv:2505.13508 (timestamp inference, future prediction); `rate` 0.05 to 0.1 in its release (a schedule is a list of phases).
    Deviates: any unambiguous date is read ("May 2016", "2016-05-03"), days do not count. Edge: several answers: 0. A gold that is no date raises
    ValueError. Range [0, 1].
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate: {self.rate} must be above 0")

    def __call__(self, rollout: Rollout) -> float:
        gold = gold_months(rollout, rollout.answer)
        said = read_date(last_answer(rollout.text))
        return 0.0 if said is None else math.exp(-min(700.0, self.rate * abs(months(said) - gold)))


@register("date_gap")
@dataclass(frozen=True, kw_only=True)
class DateGap(Reward):
    """r = (1/4 D(a) + 1/4 D(b) + 1/2 exp(-rate |n - |g_a - g_b||)) exp(-0.1 min(1, 25 / n) ||a - b| - n|), D(a) = exp(-rate |a - g_a|).

    Paper: Time-R1, arXiv:2505.13508 (time difference): two dates, the stated months n between them, and a penalty for an n that is not their gap;
    weights and penalty of its release. Gold: ["2016-05", "2017-01"]; answer: both dates as YYYY-MM, and n behind them.
    Edge: other than two dates and one number behind them: 0. A gold that is not two dates raises ValueError. Range [0, 1].
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate: {self.rate} must be above 0")

    def __call__(self, rollout: Rollout) -> float:
        gold = rollout.answer
        if not isinstance(gold, (list, tuple)) or len(gold) != 2:
            raise ValueError(f"row {rollout.row.id!r}: {gold!r} is not a pair of dates")
        first, second = (gold_months(rollout, item) for item in gold)
        said = last_answer(rollout.text)
        dates = [read_date(match[0]) for match in _DATE.finditer(said)]
        behind = list(_DATE.finditer(said))[-1].end() if dates else 0
        gaps = [int(match[0]) for match in _GAP.finditer(said, behind)]
        if len(dates) != 2 or dates[0] is None or dates[1] is None or len(gaps) != 1:
            return 0.0
        a, b, n = months(dates[0]), months(dates[1]), gaps[0]
        near = 0.25 * self._decay(a - first) + 0.25 * self._decay(b - second) + 0.5 * self._decay(n - abs(first - second))
        return near * math.exp(-min(700.0, 0.1 * min(1.0, 25 / max(n, 1)) * abs(abs(a - b) - n)))

    def _decay(self, months_apart: int) -> float:
        return math.exp(-min(700.0, self.rate * abs(months_apart)))
