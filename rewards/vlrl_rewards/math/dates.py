"""Dates and times of day: reading them, and rewards for closeness in months. An ambiguous date ("05/06/2021") is no date."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import date
from typing import Any

from vlrl.registry import register
from vlrl.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.parsing import clean, last_answer

_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december")
_NAME = "|".join(f"{name}|{name[:3]}" for name in _MONTHS) + "|sept"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_FORMS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        r"(?P<year>\d{4})[-/.](?P<number>\d{1,2})(?:[-/.](?P<day>\d{1,2}))?",
        rf"(?P<name>{_NAME})\.?\s+{_DAY}\s*,?\s*(?P<year>\d{{4}})",
        rf"{_DAY}\s+(?:of\s+)?(?P<name>{_NAME})\.?\s*,?\s*(?P<year>\d{{4}})",
        rf"(?P<name>{_NAME})\.?\s*,?\s*(?P<year>\d{{4}})",
        r"(?P<year>\d{4})\s*年\s*(?P<number>\d{1,2})\s*月(?:\s*(?P<day>\d{1,2})\s*日)?",
    )
)
_CLOCK = re.compile(
    r"(?P<hour>\d{1,2})(?:[:.](?P<minute>\d{2}))?(?::(?P<second>\d{2}))?\s?(?P<half>[ap]\.?m\.?)?(?:\s*(?:o'clock|h|uhr))?", re.IGNORECASE
)
_YEAR_MONTH = re.compile(r"(?<![\d-])\d{4}-\d{1,2}(?![\d-])")
_GAP = re.compile(r"(?<![\d-])\d{1,5}(?![\d-])")


def read_date(text: str) -> tuple[int, int, int] | None:
    """(year, month, day) of "July 4, 1776", "4 July 1776", "1776-07-04"; day 0 for "July 1776".

    None for anything else, and for a day that does not exist.
    """
    plain = clean(text).strip(" .,")
    for form in _FORMS:
        found = form.fullmatch(plain) if len(plain) < 40 else None
        if found is None:
            continue
        parts = found.groupdict()
        name = (parts.get("name") or "").lower()
        month = next(i for i, full in enumerate(_MONTHS, 1) if full[:3] == name[:3]) if name else int(parts["number"])
        year, day = int(parts["year"]), int(parts.get("day") or 0)
        return (year, month, day) if _exists(year, month, day or 1) else None
    return None


def _exists(year: int, month: int, day: int) -> bool:
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True


def read_clock(text: str) -> int | None:
    """Seconds since midnight of "2:30 PM", "14:30", "14:30:05"; None for anything else, also for a plain number."""
    plain = clean(text).strip(" ,").rstrip(".") if len(text) < 30 else ""
    found = _CLOCK.fullmatch(plain)
    if found is None or not (found["minute"] or found["half"]):
        return None
    hour, minute, second = int(found["hour"]), int(found["minute"] or 0), int(found["second"] or 0)
    if hour > (12 if found["half"] else 24) or minute > 59 or second > 59:
        return None
    if found["half"]:
        hour = hour % 12 + (12 if found["half"][0] in "pP" else 0)
    return (hour * 60 + minute) * 60 + second


def same_moment(a: str, b: str) -> bool:
    """Whether two texts are the same date or the same time of day. A time without am or pm is read as 24-hour time."""
    first, second = read_date(a), read_date(b)
    if first is not None or second is not None:
        return first == second
    clock = read_clock(a)
    return clock is not None and clock == read_clock(b)


def months(day: tuple[int, int, int]) -> int:
    """Months since year 0 of a (year, month, day)."""
    return 12 * day[0] + day[1] - 1


def gold_months(rollout: Rollout, gold: Any) -> int:
    """A gold date in months. Raises ValueError if it is not a date."""
    day = read_date(str(gold))
    if day is None:
        raise ValueError(f"row {rollout.row.id!r}: {gold!r} is not a date such as 2016-05")
    return months(day)


@register("date_decay")
@dataclass(frozen=True, kw_only=True)
class DateDecay(Reward):
    """Time-R1's reward for a date: exponential decay with the distance in months.

        r = exp(-rate |m - g|)

    m and g are the answered and the gold date in months; without a date r = 0.
    Paper: Time-R1, arXiv:2505.13508 (timestamp inference, future prediction); `rate` 0.05 to 0.1 in its release (a schedule is a list of phases).
    Deviates: any unambiguous date is read ("May 2016", "2016-05-03"); the day is ignored. Edge: several answers: 0. A gold that is no date raises
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
    """Time-R1's reward for two dates and the months between them.

        r = (1/4 D(a) + 1/4 D(b) + 1/2 exp(-rate |n - |g_a - g_b||)) exp(-0.1 min(1, 25 / n) ||a - b| - n|)
        D(a) = exp(-rate |a - g_a|)

    Paper: Time-R1, arXiv:2505.13508 (time difference): two dates, the stated months n between them, and a penalty for an n that is not their gap;
    weights and penalty of its release. Gold: ["2016-05", "2017-01"]; answer: both dates as YYYY-MM, then n.
    Edge: anything but two dates and one number behind them: 0. A gold that is not two dates raises ValueError. Range [0, 1].
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
        dates = [read_date(match[0]) for match in _YEAR_MONTH.finditer(said)]
        behind = list(_YEAR_MONTH.finditer(said))[-1].end() if dates else 0
        gaps = [int(match[0]) for match in _GAP.finditer(said, behind)]
        if len(dates) != 2 or dates[0] is None or dates[1] is None or len(gaps) != 1:
            return 0.0
        a, b, n = months(dates[0]), months(dates[1]), gaps[0]
        near = 0.25 * self._decay(a - first) + 0.25 * self._decay(b - second) + 0.5 * self._decay(n - abs(first - second))
        return near * math.exp(-min(700.0, 0.1 * min(1.0, 25 / max(n, 1)) * abs(abs(a - b) - n)))

    def _decay(self, months_apart: int) -> float:
        return math.exp(-min(700.0, self.rate * abs(months_apart)))
