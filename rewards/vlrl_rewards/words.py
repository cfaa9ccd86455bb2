"""Numbers written out in English."""

from __future__ import annotations

import re
from fractions import Fraction

_ONES = {
    word: i
    for i, word in enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ]
    )
}
_TENS = {word: 10 * (i + 2) for i, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"])}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {"half": 2, "halves": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9, "tenth": 10}


def number_words(text: str) -> Fraction | None:
    """ "minus twenty-one", "two hundred and five", "three quarters", "one half" as a number; None for anything else."""
    words = re.findall(r"[a-z]+", text.lower())
    if not words or len(words) > 24 or re.search(r"[^a-zA-Z\s,.-]", text):
        return None
    sign = 1
    if words[0] in ("minus", "negative"):
        sign, words = -1, words[1:]
    if (words[-3:-1] == ["and", "a"] and words[-1] == "half") or words[-3:] == ["and", "three", "quarters"] or words[-3:] == ["and", "a", "quarter"]:
        count = _whole(words[:-3])
        part = {"half": Fraction(1, 2), "quarters": Fraction(3, 4), "quarter": Fraction(1, 4)}[words[-1]]
        return None if count is None else sign * (count + part)
    if words and (words[-1] in _PARTS or words[-1].removesuffix("s") in _PARTS):
        below = _PARTS.get(words[-1]) or _PARTS[words[-1].removesuffix("s")]
        top = _whole(words[:-1]) if words[:-1] not in ([], ["a"]) else 1
        return None if top is None else Fraction(sign * top, below)
    if words and words[-1] in ("dozen", "dozens"):
        count = 1 if words[:-1] in ([], ["a"]) else _whole(words[:-1])
        return None if count is None else Fraction(sign * 12 * count)
    value = _whole(words)
    return None if value is None else Fraction(sign * value)


def _whole(words: list[str]) -> int | None:
    total, current, seen = 0, 0, False
    last = 10**18
    for word in words:
        if word in ("and", "a") and (seen or word == "a"):
            continue
        if word in _ONES:
            if seen and (current % 10 or current % 100 == 10 or (_ONES[word] >= 10 and current % 100) or last == 0):
                return None
            current += _ONES[word]
            last = 0
        elif word in _TENS:
            if current % 100:
                return None
            current += _TENS[word]
            last = 1
        elif word == "hundred":
            current = (current or 1) * 100
            last = 2
        elif word in _SCALES:
            total, current = total + (current or 1) * _SCALES[word], 0
            last = 3
        else:
            return None
        seen = True
    return total + current if seen else None
