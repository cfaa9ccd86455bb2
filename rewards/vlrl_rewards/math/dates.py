"""Dates and times of day: reading them, and rewards for closeness in months. An ambiguous date ("05/06/2021")
is no date."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import combinations
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout, Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.parsing import clean, committed_answer, last_answer

_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
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
    (
        r"(?P<hour>\d{1,"
        r"2})(?:[:.](?P<minute>\d{2}))?(?::(?P<second>\d{2}))?\s?(?P<half>[ap]\.?m\.?)?(?:\s*(?:o'clock|h|"
        r"uhr))?"
    ),
    re.IGNORECASE,
)
_YEAR_MONTH = re.compile(r"(?<![\d-])\d{4}-\d{1,2}(?![\d-])")
_GAP = re.compile(r"(?<![\d-])\d{1,5}(?![\d-])")
_DIGIT = re.compile(r"(?<!\d)\d(?!\d)")
_WORD = re.compile(r"[A-Za-z]+|\d+")
_NO_EVENT = re.compile(r"no event|none", re.IGNORECASE)


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
        month = (
            next(i for i, full in enumerate(_MONTHS, 1) if full[:3] == name[:3])
            if name
            else int(parts["number"])
        )
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
    """Seconds since midnight of "2:30 PM", "14:30", "14:30:05"; None for anything else, also for a plain
    number."""
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
    """Whether two texts are the same date or the same time of day. A time without am or pm is read as 24-hour
    time."""
    first, second = read_date(a), read_date(b)
    if first is not None or second is not None:
        return first == second
    clock = read_clock(a)
    return clock is not None and clock == read_clock(b)


def months(day: tuple[int, int, int]) -> int:
    """Months since year 0 of a (year, month, day)."""
    return 12 * day[0] + day[1] - 1


def gold_months(row: Row, gold: Any) -> int:
    """A gold date in months. Raises GoldError if it is not a date."""
    day = read_date(str(gold))
    if day is None:
        raise GoldError(f"row {row.id!r}: {gold!r} is not a date such as 2016-05")
    return months(day)


@dataclass(frozen=True, kw_only=True)
class DatesByDecay(Graded):
    """Base of Time-R1's rewards: what an error in months earns falls as exp(-rate |error|), more slowly for
    rows that are marked hard.

        rate(row) = rate                                                     for other rows
                    hard_rate + (rate - hard_rate) min(1, t / hard_steps)    where row.meta["hard"] is true

    t is the step of the phase, from 1; with hard_steps 0 the rate of hard rows is hard_rate throughout.
    Without a `hard_rate` all rows have `rate`. Paper: Time-R1, arXiv:2505.13508 (dynamic reward); code:
    ulab-uiuc/Time-R1, verl/trainer/main_ppo_s1_p2.py (0.07) and main_ppo_s1_p3.py (0.07 to 0.1 in 50 steps),
    commit 4078886. Raises ValueError for a rate of 0 or less and for negative `hard_steps`.
    """

    rate: float = 0.1
    hard_rate: float | None = None
    hard_steps: int = 0

    def __post_init__(self) -> None:
        for name, rate in (("rate", self.rate), ("hard_rate", self.hard_rate)):
            if rate is not None and rate <= 0:
                raise ValueError(f"{name}: {rate} must be above 0")
        if self.hard_steps < 0:
            raise ValueError(f"hard_steps: {self.hard_steps} must be 0 or more steps")

    def rate_of(self, row: Row) -> float:
        """The rate of a row at this step."""
        if self.hard_rate is None or not row.meta.get("hard"):
            return self.rate
        if not self.hard_steps:
            return self.hard_rate
        step = self.run.phase_step + 1 if self.is_set_up else 0
        return self.hard_rate + (self.rate - self.hard_rate) * min(1.0, step / self.hard_steps)


@register("date_decay")
@dataclass(frozen=True, kw_only=True)
class DateDecay(DatesByDecay):
    """Time-R1's reward for a date: exponential decay with the distance in months.

        r = exp(-rate |m - g|)

    m and g are the answered and the gold date in months; without a date r = 0.
    Paper: Time-R1, arXiv:2505.13508 (timestamp inference, future prediction).
    Deviates: any unambiguous date is read ("May 2016", "2016-05-03"); the day is ignored. Edge: several
    answers: 0. A gold that is no date raises ValueError. Range [0, 1].
    """

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        wanted = gold_months(row, gold)
        answer = committed_answer(response)
        said = read_date(answer.text)
        if said is None:
            raise Unread("no date in the answer", answer)
        away = months(said) - wanted
        return self.scored(answer, _decay(self.rate_of(row), away), None, f"{away} months off")


@register("date_gap")
@dataclass(frozen=True, kw_only=True)
class DateGap(DatesByDecay):
    """Time-R1's reward for two dates and the months between them.

        r = (1/4 D(a) + 1/4 D(b) + 1/2 exp(-rate |n - |g_a - g_b||)) exp(-0.1 min(1, 25 / n) ||a - b| - n|)
        D(a) = exp(-rate |a - g_a|)

    Paper: Time-R1, arXiv:2505.13508 (time difference): two dates, the stated months n between them, and a
    penalty for an n that is not their gap; weights and penalty of its release. Gold: ["2016-05", "2017-01"];
    answer: both dates as YYYY-MM, then n.
    Edge: anything but two dates and one number behind them: 0. A gold that is not two dates raises
    ValueError. Range [0, 1].
    """

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        if not isinstance(gold, (list, tuple)) or len(gold) != 2:
            raise GoldError(f"row {row.id!r}: {gold!r} is not a pair of dates")
        first, second = (gold_months(row, item) for item in gold)
        answer = committed_answer(response)
        said = read_gap(answer.text)
        if said is None:
            raise Unread("no two dates and their gap", answer)
        (a, b), n = said
        rate = self.rate_of(row)
        near = (
            0.25 * _decay(rate, a - first)
            + 0.25 * _decay(rate, b - second)
            + 0.5 * _decay(rate, n - abs(first - second))
        )
        score = near * _decay(0.1 * min(1.0, 25 / max(n, 1)), abs(a - b) - n)
        return self.scored(answer, score, None, f"{a - first} and {b - second} months off, gap {n}")


@register("date_order")
@dataclass(frozen=True, kw_only=True)
class DateOrder(DatesByDecay):
    """Time-R1's reward for the dates of three events and their order.

        r = (0.2 (D(a) + D(b) + D(c)) + 0.4 P) C V
        D(x) = exp(-rate |x - g_x|), in months

    P: share of the three pairs in the order of the gold dates. C: 1 where the stated order is that of the
    stated dates, else 0.7, 0.4 or 0.2 for two, one or no common pair. V: 0.2 for dates that are all the same
    or successive months, else 1. Paper: Time-R1, arXiv:2505.13508 (time ordering). Deviates:
    rewards/DEVIATIONS.md. Gold: ["2016-05", "2017-01", "2015-03"]; answer: the dates as YYYY-MM, then the
    numbers of the events, the earliest first ("3-1-2"). Edge: anything else: 0. Range [0, 1].
    """

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        if not isinstance(gold, (list, tuple)) or len(gold) != 3:
            raise GoldError(
                f"row {row.id!r}: {gold!r} is not a list of three dates such as ['2016-05', "
                "'2017-01', '2015-03']"
            )
        wanted = [gold_months(row, item) for item in gold]
        answer = committed_answer(response)
        said = read_order(answer.text)
        if said is None:
            raise Unread("no three dates and their order", answer)
        dates, order = said
        near = sum(0.2 * _decay(self.rate_of(row), a - g) for a, g in zip(dates, wanted, strict=True))
        pairs = _pairs_in_order(order, wanted)
        score = (near + 0.4 * pairs / 3) * self.consistency(order, dates) * self.variety(order, dates)
        return self.scored(answer, score, None, f"{pairs} of 3 pairs in order")

    @staticmethod
    def consistency(order: Sequence[int], dates: Sequence[int]) -> float:
        """C: whether the stated order is that of the stated dates."""
        by_date = sorted((1, 2, 3), key=lambda event: dates[event - 1])
        return (
            1.0
            if list(order) == by_date
            else (0.2, 0.4, 0.7)[_pairs_in_order(order, [by_date.index(event) for event in (1, 2, 3)])]
        )

    @staticmethod
    def variety(order: Sequence[int], dates: Sequence[int]) -> float:
        """V: below 1 for dates that answer no question, such as successive months."""
        steps = (dates[1] - dates[0], dates[2] - dates[1])
        return 0.2 if (*steps, *order) in ((1, 1, 1, 2, 3), (-1, -1, 3, 2, 1)) or steps == (0, 0) else 1.0


@register("masked_date")
@dataclass(frozen=True, kw_only=True)
class MaskedDate(DatesByDecay):
    """Time-R1's reward for an event's date and the year or month that its text leaves out.

        r = 1/2 exp(-rate |x - g|) + 1/2 exp(-3 rate d)

    x and g are the answered and the gold date in months. d is the distance of the answered from the gold
    year, or of the months of the year around the circle (December and January: 1). Paper: Time-R1,
    arXiv:2505.13508 (masked time entity completion). Gold: ["2016-05", "May"] or ["2016-05", "2016"]; answer:
    the date as YYYY-MM, then the year or the month. Edge: no date, several dates, or no single word behind it
    that is a month (a year from 1900 to 2100): 0. Range (0, 1], or 0.
    """

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        if not isinstance(gold, (list, tuple)) or len(gold) != 2:
            raise GoldError(
                f"row {row.id!r}: {gold!r} is not a date and a masked year or month, such as "
                "['2016-05', 'May']"
            )
        wanted, masked = gold_months(row, gold[0]), str(gold[1]).strip()
        asks_year = is_year(masked)
        hidden = read_year(masked) if asks_year else read_month(masked)
        if hidden is None:
            raise GoldError(f"row {row.id!r}: {gold[1]!r} is neither a year from 1900 to 2100 nor a month")
        answer = committed_answer(response)
        said = read_masked(answer.text, asks_year)
        if said is None:
            raise Unread("no date and its masked part", answer)
        rate, apart = self.rate_of(row), abs(said[1] - hidden)
        apart = apart if asks_year else min(apart, 12 - apart)
        score = 0.5 * _decay(rate, said[0] - wanted) + 0.5 * _decay(3 * rate, apart)
        return self.scored(answer, score, None, f"{said[0] - wanted} months off, the masked part {apart}")


@register("date_form")
@dataclass(frozen=True, kw_only=True)
class DateForm(Reward):
    """Time-R1's bonus for an answer in the form that its task asks for, and its penalty for none.

        r = bonus      the answer has the form of the gold answer
            -refused   a date is asked for, the answer says "no event" or "none"
            -missing   a date is asked for, no answer; the other tasks: any other answer
            0          a date is asked for, the answer is something else

    The form follows the gold answer, of which nothing else is read: a text, a list of two or three dates, or
    a date with a masked month or year. Paper: Time-R1, arXiv:2505.13508 (format reward, "no event" penalty).
    Deviates: rewards/DEVIATIONS.md. Range [-max(missing, refused), bonus].
    """

    reads_answer: ClassVar[bool] = False
    bonus: float = 0.05
    missing: float = 0.2
    refused: float = 0.1

    def __call__(self, rollout: Rollout) -> float:
        gold, said = rollout.answer, last_answer(rollout.text)
        if not isinstance(gold, (list, tuple)):
            if read_date(said) is not None:
                return self.bonus
            if not said.strip():
                return -self.missing
            return -self.refused if _NO_EVENT.search(said) else 0.0
        if len(gold) not in (2, 3):
            raise GoldError(
                f"gold: {gold!r} has {len(gold)} items; give a date, two dates, three dates, or a date and "
                "a masked month or year"
            )
        if len(gold) == 3:
            read = read_order(said) is not None
        elif read_date(str(gold[1])) is not None:
            read = read_gap(said) is not None
        else:
            read = read_masked(said, is_year(str(gold[-1]))) is not None
        return self.bonus if read else -self.missing


def is_year(word: str) -> bool:
    """Whether a masked word is a year: four digits."""
    return len(word.strip()) == 4 and word.strip().isdecimal()


def read_gap(said: str) -> tuple[list[int], int] | None:
    """Two dates in months and the number behind them; None for anything else."""
    dates, behind = _stated_dates(said)
    gaps = [int(match[0]) for match in _GAP.finditer(said, behind)]
    return (dates, gaps[0]) if len(dates) == 2 and len(gaps) == 1 else None


def read_order(said: str) -> tuple[list[int], list[int]] | None:
    """Three dates in months and behind them the numbers 1 to 3, once each; None for anything else."""
    dates, behind = _stated_dates(said)
    order = [int(match[0]) for match in _DIGIT.finditer(said, behind)]
    return (dates, order) if len(dates) == 3 and sorted(order) == [1, 2, 3] else None


def read_masked(said: str, asks_year: bool) -> tuple[int, int] | None:
    """A date in months and behind it one year, or one month as a number; None for anything else."""
    dates, behind = _stated_dates(said)
    read = read_year if asks_year else read_month
    named = [value for word in _WORD.findall(said[behind:]) if (value := read(word)) is not None]
    return (dates[0], named[0]) if len(dates) == 1 and len(named) == 1 else None


def read_year(word: str) -> int | None:
    """A year from 1900 to 2100 of four digits; None for anything else."""
    return int(word) if len(word) == 4 and word.isdecimal() and 1900 <= int(word) <= 2100 else None


def read_month(word: str) -> int | None:
    """1 to 12 of a month's name, its first three letters ("sept" too) or its number; None for anything
    else."""
    if word.isdecimal():
        return int(word) if len(word) <= 2 and 1 <= int(word) <= 12 else None
    low = word.casefold().rstrip(".")
    return next(
        (i for i, full in enumerate(_MONTHS, 1) if low in (full, full[:3]) or (low, i) == ("sept", 9)), None
    )


def _stated_dates(said: str) -> tuple[list[int], int]:
    """The dates YYYY-MM of an answer in months (none if one of them does not exist), and the position behind
    the last one."""
    found = list(_YEAR_MONTH.finditer(said))
    dates = [read_date(match[0]) for match in found]
    return [months(day) for day in dates if day is not None] if None not in dates else [], found[
        -1
    ].end() if found else 0


def _pairs_in_order(order: Sequence[int], places: Sequence[int]) -> int:
    """How many of the pairs of events stand in `order` (numbers from 1) as their `places` do; equal places
    count in either order."""
    return sum(places[a - 1] <= places[b - 1] for a, b in combinations(order, 2))


def _decay(rate: float, months_apart: float) -> float:
    return math.exp(-min(700.0, rate * abs(months_apart)))
