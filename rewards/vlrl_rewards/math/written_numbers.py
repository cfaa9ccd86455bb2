"""One number out of an answer: digits, grouped digits, or English number words."""

from __future__ import annotations

import re

from vlrl_rewards.denials import denied
from vlrl_rewards.vocabulary import ABOUT, AND_MORE, COMPARED
from vlrl_rewards.words import number_words

_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,4}(?:\.[0-9]{1,30})?|[0-9]{1,15}(?:\.[0-9]{1,30})?|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,2})?(?!\.?[0-9])"
)
_ONE = (
    r"zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen|twenty|thirty|"
    r"forty|fifty|sixty|seventy|eighty|ninety"
)
_WORD = re.compile(rf"(?<![\w-])(?:none|(?:{_ONE})(?:[\s-](?:and\s)?(?:{_ONE}|hundred|thousand)){{0,9}})(?![\w-])", re.IGNORECASE)
_FINAL = re.compile(r"\n|[.;!?](?:\s|$)")
_GLUED = re.compile(r"(?:mm|cm|dm|km|m|in|ft|s|sec|ms|min|h|kg|g|mg|px|deg|degrees?|x)(?![A-Za-z0-9])", re.IGNORECASE)
_BOUND_BEFORE = re.compile(
    rf"(?:\b(?:{COMPARED}|{ABOUT}|(?:minimum|maximum)(?:\s+of)?|exceed(?:s|ing)?)|[<>≤≥≠])\s?(?:or equal to\s)?=?\s?$",
    re.IGNORECASE,
)
_BOUND_AFTER = re.compile(
    rf"\s?(?:\+(?!\s?[0-9])|(?:{AND_MORE})\b|plus\b|at (?:least|most)\b|(?:hundred|thousand|million)s?\b)",
    re.IGNORECASE,
)
_EQUALS = re.compile(r"(?<![<>!=~])=(?!=)")
_SUM = re.compile(r"[0-9]\s?[-+*/×÷]\s?[0-9]")
_NOTHING = re.compile(
    r"(?:there (?:is|are)|(?:i|we) (?:can )?(?:see|count|find)) (?:no|not any) "
    r"(?!way|idea|answer|info|clue|doubt|need|reason)\w{1,20}(?: \w{1,20}){0,4}[.!]?",
    re.IGNORECASE,
)


def numbers_in(text: str) -> list[tuple[float, int]]:
    """(number, place) in order of place. Digits glued to letters ("x1", "3D", "1st") are names, except units ("12cm"); words count only where there
    are no digits. Numbers that the text denies, or gives as a bound ("not 7", "more than 7", "7+"), are left out."""
    matches = [(float(m.group().replace(",", "")), m) for m in _NUMBER.finditer(text) if _stands_alone(text, m.end())]
    if not matches:
        worded = [(0 if m.group().lower() == "none" else number_words(m.group()), m) for m in _WORD.finditer(text)]
        if any(value is None for value, _ in worded):
            return []
        matches = [(float(value), m) for value, m in worded if value is not None]
    return [(value, m.start()) for value, m in matches if not _bounded(text, m.start(), m.end())]


def _stands_alone(text: str, end: int) -> bool:
    following = text[end : end + 1]
    latin = following.isalpha() and following < "\u0250"  # "5 cats" in Chinese has no blank
    return not (latin or following.isdigit() or following == "\ufffd") or _GLUED.match(text, end) is not None


def _bounded(text: str, start: int, end: int) -> bool:
    return _BOUND_BEFORE.search(text[max(0, start - 40) : start]) is not None or _BOUND_AFTER.match(text, end) is not None or denied(text, start, end)


def one_number(text: str, tagged: bool) -> float | None:
    """The number an answer commits to, or None if it has none or several.

    In answer tags all numbers must agree (after the last "=" of "3 + 4 = 7"); in free text those of the last statement that has any.
    "There are no cars" is 0; a sum that is left to the reader ("7 + 7", "7/7") is no number.
    """
    if len(text) > 20_000:
        return None
    if _NOTHING.fullmatch(text.strip()):
        return 0.0
    sides = _EQUALS.split(text)
    text = sides[-1] if tagged and len(sides) > 1 and numbers_in(sides[-1]) else text
    found = numbers_in(text)
    if found and not tagged:
        ends = [m.start() for m in _FINAL.finditer(text)]
        last = sum(end < found[-1][1] for end in ends)
        found = [pair for pair in found if sum(end < pair[1] for end in ends) == last]
    if not found or _SUM.search(text, found[0][1]):
        return None
    return found[0][0] if len({number for number, _ in found}) == 1 else None
