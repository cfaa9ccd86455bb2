"""Numbers in text: English number words, and the one number that an answer commits to."""

from __future__ import annotations

import re
from fractions import Fraction

from vlrl_rewards.text.denials import ABOUT, AND_MORE, COMPARED, denied

_ONES = {word: i for i, word in enumerate((
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen",
    "sixteen", "seventeen", "eighteen", "nineteen",
))}  # fmt: skip
_TENS = {
    word: 10 * (i + 2)
    for i, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"])
}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {
    "half": 2,
    "halves": 2,
    "third": 3,
    "quarter": 4,
    "fourth": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
    "eighth": 8,
    "ninth": 9,
    "tenth": 10,
}
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,4}(?:\.[0-9]{1,30})?|[0-9]{1,15}(?:\.[0-9]{1,30})?|"
    r"\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,2})?(?!\.?[0-9])"
)
ONE_WORD = (
    r"zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|"
    r"sixteen|seventeen|eighteen|nineteen|twenty|thirty|"
    r"forty|fifty|sixty|seventy|eighty|ninety"
)
_WORD = re.compile(
    rf"(?<![\w-])(?:none|(?:{ONE_WORD})(?:[\s-](?:and\s)?(?:{ONE_WORD}|hundred|thousand)){{0,9}})(?![\w-])",
    re.IGNORECASE,
)
_FINAL = re.compile(r"\n|[.;!?](?:\s|$)")
_GLUED = re.compile(
    r"(?:mm|cm|dm|km|m|in|ft|s|sec|ms|min|h|kg|g|mg|px|deg|degrees?|x)(?![A-Za-z0-9])", re.IGNORECASE
)
_BOUND_BEFORE = re.compile(
    (
        rf"(?:\b(?:{COMPARED}|{ABOUT}|(?:minimum|maximum)(?:\s+of)?|exceed(?:s|ing)?)|[<>≤≥≠])\s?(?:or "
        r"equal "
        r"to\s)?=?\s?$"
    ),
    re.IGNORECASE,
)
_BOUND_AFTER = re.compile(
    rf"\s?(?:\+(?!\s?[0-9])|(?:{AND_MORE})\b|plus\b|at (?:least|most)\b|(?:hundred|thousand|million)s?\b)",
    re.IGNORECASE,
)
_EQUALS = re.compile(r"(?<![<>!=~])=(?!=)")
_TOTAL = re.compile(
    r"\b(?:so|total|altogether|overall|therefore|thus|hence|sum|mak(?:es|ing)|giv(?:es|ing)|is|are)\b|=|->|→",
    re.IGNORECASE,
)
_IN_TOTAL = re.compile(r"\b(?:in\s+total|altogether|overall|in\s+all|total)\b", re.IGNORECASE)
_SUM = re.compile(r"[0-9]\s?[-+*/×÷]\s?[0-9]")
_ZERO = re.compile(
    r"(?:there (?:is|are)|(?:i|we) (?:can )?(?:see|count|find)) (?:no|not any) "
    r"(?!way|idea|answer|info|clue|doubt|need|reason)\w{1,20}(?: \w{1,20}){0,4}[.!]?",
    re.IGNORECASE,
)


def number_words(text: str) -> Fraction | None:
    """The value of number words ("minus twenty-one", "two hundred and five", "three quarters", "one half");
    None for anything else."""
    words = re.findall(r"[a-z]+", text.lower())
    if not words or len(words) > 24 or re.search(r"[^a-zA-Z\s,.-]|[-,]\s*$", text):
        return None
    sign = 1
    if words[0] in ("minus", "negative"):
        sign, words = -1, words[1:]
    if (
        (words[-3:-1] == ["and", "a"] and words[-1] == "half")
        or words[-3:] == ["and", "three", "quarters"]
        or words[-3:] == ["and", "a", "quarter"]
    ):
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
            if seen and (
                current % 10 or current % 100 == 10 or (_ONES[word] >= 10 and current % 100) or last == 0
            ):
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


def numbers_in(text: str) -> list[tuple[float, int]]:
    """(number, character offset) in order of offset.

    Digits next to letters ("x1", "3D", "1st") are names, except before units ("12cm"). Number words count
    only where there are no digits. Numbers that the text denies or gives as a bound ("not 7", "more than 7",
    "7+") are left out.
    """
    matches = [
        (float(m.group().replace(",", "")), m) for m in _NUMBER.finditer(text) if _stands_alone(text, m.end())
    ]
    if not matches:
        worded = [
            (0 if m.group().lower() == "none" else number_words(m.group()), m) for m in _WORD.finditer(text)
        ]
        if any(value is None for value, _ in worded):
            return []
        matches = [(float(value), m) for value, m in worded if value is not None]
    return [(value, m.start()) for value, m in matches if not _bounded(text, m.start(), m.end())]


def _stands_alone(text: str, end: int) -> bool:
    following = text[end : end + 1]
    latin = following.isalpha() and following < "\u0250"  # Chinese has no space between a number and a noun
    return not (latin or following.isdigit() or following == "\ufffd") or _GLUED.match(text, end) is not None


def _bounded(text: str, start: int, end: int) -> bool:
    return (
        _BOUND_BEFORE.search(text[max(0, start - 40) : start]) is not None
        or _BOUND_AFTER.match(text, end) is not None
        or denied(text, start, end)
    )


def total_in(text: str, found: list[tuple[float, int]]) -> int | None:
    """The index of the number that a statement gives as the sum of all its other numbers ("3 cats and 4 dogs,
    so 7 animals"); None without one.

    found: (number, character offset) of every number of `text`, in order. The words must say that it is a
    total: "so", "in total", "=" before or behind it, or the parts in brackets: "7 (3 on the left, 4 on the
    right)". "3, 4, 7" is a list.
    """
    if not 3 <= len(found) <= 12:
        return None
    values = [value for value, _ in found]
    if values[-1] == sum(values[:-1]):
        before, behind = text[found[-2][1] : found[-1][1]], text[found[-1][1] :]
        return len(found) - 1 if _TOTAL.search(before) or _IN_TOTAL.search(behind) else None
    opened = text.find("(", found[0][1], found[1][1])
    return 0 if values[0] == sum(values[1:]) and opened >= 0 and text.rstrip(" .!")[-1:] == ")" else None


def one_number(text: str, tagged: bool) -> float | None:
    """The number that an answer commits to; None if there is none, or several.

    In answer tags (`tagged`) all numbers must agree, behind the last "=" of "3 + 4 = 7"; in free text those
    of the last statement that has any. "There are no cars" is 0; an expression that is not evaluated ("7 +
    7", "7/7") is no number.
    """
    if len(text) > 20_000:
        return None
    if _ZERO.fullmatch(text.strip()):
        return 0.0
    sides = _EQUALS.split(text)
    text = sides[-1] if tagged and len(sides) > 1 and numbers_in(sides[-1]) else text
    found = numbers_in(text)
    total = total_in(text, found) if all(value >= 0 and value == int(value) for value, _ in found) else None
    if total is not None:
        return found[total][0]
    if found and not tagged:
        ends = [m.start() for m in _FINAL.finditer(text)]
        last = sum(end < found[-1][1] for end in ends)
        found = [pair for pair in found if sum(end < pair[1] for end in ends) == last]
    if not found or _SUM.search(text, found[0][1]):
        return None
    return found[0][0] if len({number for number, _ in found}) == 1 else None
