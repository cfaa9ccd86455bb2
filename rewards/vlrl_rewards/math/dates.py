"""Dates and times of day as people write them. Nothing is guessed: "05/06/2021" is no date here, for it is two."""

from __future__ import annotations

import re
from datetime import date

from vlrl_rewards.parsing import clean

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


def read_date(text: str) -> tuple[int, int, int] | None:
    """(year, month, day) of "July 4, 1776", "4 July 1776", "1776-07-04"; day 0 for "July 1776"; None for anything else, and for no such day."""
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
    """Seconds since midnight of "2:30 PM", "14:30", "14:30:05"; None for anything else, also for a bare number."""
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
    """Whether two texts are one date, or one time of day (where one of them says which half of the day, or both are written alike)."""
    first, second = read_date(a), read_date(b)
    if first is not None or second is not None:
        return first == second
    clock = read_clock(a)
    return clock is not None and clock == read_clock(b)
