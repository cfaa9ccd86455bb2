"""One number out of an answer: digits, grouped digits, or an English number word."""

from __future__ import annotations

import re

WORDS = dict(
    zip(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"], range(13), strict=True)
) | {"none": 0}
_NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,4}(?:\.[0-9]{1,12})?|[0-9]{1,15}(?:\.[0-9]{1,12})?|\.[0-9]{1,12})(?:[eE][-+]?[0-9]{1,2})?(?![0-9])"
)
_WORD = re.compile(r"(?<![\w-])(" + "|".join(WORDS) + r")(?![\w-])", re.IGNORECASE)
_FINAL = re.compile(r"\n|[.;!?](?:\s|$)")


_GLUED = re.compile(r"(?:mm|cm|dm|km|m|in|ft|s|sec|ms|min|h|kg|g|mg|px|deg|degrees?|x)(?![A-Za-z0-9])", re.IGNORECASE)


def numbers_in(text: str) -> list[tuple[float, int]]:
    """(number, place) in order of place. Digits glued to letters ("x1", "3D", "1st") are names, except units ("12cm"); words count only where there
    are no digits."""
    found = [
        (float(m.group().replace(",", "").replace("\u2212", "-")), m.start())
        for m in _NUMBER.finditer(text)
        if not text[m.end() : m.end() + 1].isalpha() or _GLUED.match(text, m.end())
    ]
    return found or [(float(WORDS[m.group().lower()]), m.start()) for m in _WORD.finditer(text)]


def one_number(text: str, tagged: bool) -> float | None:
    """The number an answer commits to, or None if it has none or several.

    In answer tags all numbers must agree; in free text those of the last statement that has any.
    """
    if len(text) > 20_000:
        return None
    found = numbers_in(text)
    if found and not tagged:
        ends = [m.start() for m in _FINAL.finditer(text)]
        last = sum(end < found[-1][1] for end in ends)
        found = [pair for pair in found if sum(end < pair[1] for end in ends) == last]
    return found[0][0] if found and len({number for number, _ in found}) == 1 else None
