"""Comparison of an answer with the one right answer of a question, in the forms of reasoning_gym: text,
numbers, lists, grids, fractions, times.

Each check is a function (gold, said, kept) -> whether `said` is right. `gold` and `said` are texts, `kept` is
what the row keeps of the puzzle. A check reads the whole answer, so that a right answer inside a longer text,
or several answers at once, are wrong. It never raises because of `said`, takes time linear in its length, and
evaluates nothing. It raises ValueError (LookupError, TypeError) for a broken `gold` or `kept`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

Check = Callable[[str, str, Mapping[str, Any]], bool]

_PLAIN = re.compile(r"[+-]?(?:\d{1,400}|\d{1,3}(?:,\d{3}){1,100})(?:\.\d{1,400})?")
_SCIENTIFIC = re.compile(r"([+-]?\d{1,400}(?:\.\d{1,400})?)(?:[eE]([+-]?\d{1,3}))?")
_SEPARATORS = re.compile(r"[\s\[\](){},;'\"|]+")
_LATEX_FRACTION = re.compile(r"\$?\s*\\d?frac\s*\{\s*(\d{1,400})\s*\}\s*\{\s*(\d{1,400})\s*\}\s*\$?")
_RATIO = re.compile(r"\$?\s*(\d{1,400})\s*/\s*(\d{1,400})\s*\$?")
_HEX = re.compile(r"(-?)\s*0x([0-9a-f]{1,400})", re.IGNORECASE)
_REAL = r"\d{1,40}(?:\.\d{1,40})?"
_COMPLEX = re.compile(rf"(?P<re>[+-]?{_REAL})?(?:(?P<sign>[+-])?(?P<im>{_REAL})?[ij])?", re.IGNORECASE)
_TIME = re.compile(
    r"(?:(?P<days>\d{1,9})\s*days?\s*(?:,\s*)?)?"
    r"(?:(?P<h>\d{1,9}):(?P<m>\d\d)(?::(?P<s>\d\d(?:\.\d{1,9})?))?)?",
    re.IGNORECASE,
)
_STATEMENT = re.compile(r"([^\W\d_][\w'-]*) is an? ([^\W\d_]+)")
_BETWEEN = re.compile(r"(?<!\s)(?:\s*,\s*and\s+|\s*,\s*|\s+and\s+|\s*\n\s*)")


def number(text: str) -> Decimal | None:
    """A plain decimal number, digits perhaps grouped by commas ("+01,000.50"); None for any other text."""
    plain = text.strip()
    return Decimal(plain.replace(",", "")) if _PLAIN.fullmatch(plain) else None


def scientific(text: str) -> Decimal | None:
    """A number that may have an exponent of up to three digits; None for any other text."""
    match = _SCIENTIFIC.fullmatch(text.strip())
    return Decimal(match[1]).scaleb(int(match[2] or 0)) if match else None


def listed(text: str) -> list[str]:
    """The parts of a text between spaces, commas, brackets, bars and quotes."""
    return [part for part in _SEPARATORS.split(text) if part]


def as_json(text: str) -> Any:
    """The JSON value that a text is; None for any other text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _required(value: Decimal | None, gold: str) -> Decimal:
    if value is None:
        raise ValueError(f"answer: {gold!r} is not a number")
    return value


def same(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """Equal numbers, where the gold answer is one; else equal texts, apart from case, the width of white
    space and a full stop at the end."""
    said = said.strip() if gold.strip().endswith(".") else said.strip().removesuffix(".")
    if (target := number(gold)) is not None:
        return number(said) == target
    return bool(said.strip()) and " ".join(said.split()).casefold() == " ".join(gold.split()).casefold()


def items(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """Equal items in the same order: lists, matrices, boards, however separated. An empty list must be
    written as the gold is."""
    targets, parts = listed(gold), listed(said)
    if not targets:
        return "".join(said.split()) == "".join(gold.split())
    return len(parts) == len(targets) and all(
        same(target, part, kept) for target, part in zip(targets, parts)
    )


def digits(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """Equal digits in the same order, with nothing else than a board's lines and inequality signs."""
    if not re.fullmatch(r"[\d\s<>^v∧∨|,_-]*", said):
        return False
    return re.findall(r"\d+", said) == re.findall(r"\d+", gold)


def rounded(last_place: str = "") -> Check:
    """As many numbers as the gold has, each within `last_place` of its own ("": one unit in the last decimal
    place of the gold number)."""

    def check(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
        targets = [_required(scientific(part), gold) for part in listed(gold.replace("°", ""))]
        parts = [scientific(part) for part in listed(said.replace("°", ""))]
        if not targets or len(parts) != len(targets):
            return False
        within = [
            Decimal(last_place) if last_place else Decimal(1).scaleb(int(target.as_tuple().exponent))
            for target in targets
        ]
        return all(
            part is not None and abs(part - target) <= most
            for target, part, most in zip(targets, parts, within)
        )

    return check


def near(within: str) -> Check:
    """One number within `within` of the gold, digits perhaps grouped by commas."""

    def check(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
        target, value = _required(scientific(gold), gold), number(said)
        value = scientific(said) if value is None and "," not in said else value
        return value is not None and abs(value - target) <= Decimal(within)

    return check


def solutions(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """The same set of numbers separated by commas, in any order, each to four decimal places."""
    targets = sorted(_required(scientific(part), gold) for part in gold.split(","))
    parts = [scientific(part) for part in said.split(",")]
    found = sorted(part for part in parts if part is not None)
    return len(found) == len(parts) == len(targets) and all(
        abs(a - b) <= Decimal("0.0001") for a, b in zip(found, targets)
    )


def significant(places: int) -> Check:
    """A number that rounds to the same `places` significant digits as the gold."""

    def check(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
        target, value = _required(scientific(gold), gold), scientific(said)
        return value is not None and format(value, f".{places - 1}e") == format(target, f".{places - 1}e")

    return check


def hexadecimal(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """Equal hexadecimal integers, written with 0x."""
    target, found = _HEX.fullmatch(gold.strip()), _HEX.fullmatch(said.strip())
    if target is None:
        raise ValueError(f"answer: {gold!r} is not a hexadecimal number")
    return found is not None and int(found[1] + found[2], 16) == int(target[1] + target[2], 16)


def _ratio(text: str) -> tuple[int, int] | None:
    found = _LATEX_FRACTION.fullmatch(text.strip()) or _RATIO.fullmatch(text.strip())
    return (int(found[1]), int(found[2])) if found else None


def fraction(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    r"""The same reduced fraction: numerator and denominator equal those of the gold; "3/4" or "\frac{3}{4}",
    in dollar signs or not."""
    if (target := _ratio(gold)) is None:
        return same(gold, said, kept)
    return _ratio(said) == target


def probability(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """A probability as a decimal or a fraction, within 1e-4 and within 0.1% of the gold."""
    target, pair = Fraction(_required(scientific(gold), gold)), _ratio(said)
    plain = scientific(said)
    if pair is not None and pair[1]:
        value = Fraction(*pair)
    elif plain is not None:
        value = Fraction(plain)
    else:
        return False
    return abs(value - target) <= min(Fraction(1, 10_000), target / 1000)


def complex_number(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """Equal complex numbers "a + bi", in either part to 1e-6."""
    target, value = _complex(gold), _complex(said)
    if target is None:
        raise ValueError(f"answer: {gold!r} is not a complex number")
    return (
        value is not None and abs(value.real - target.real) <= 1e-6 and abs(value.imag - target.imag) <= 1e-6
    )


def _complex(text: str) -> complex | None:
    plain = "".join(text.split())
    plain = plain[1:-1] if plain[:1] + plain[-1:] == "()" else plain
    has_unit = plain[-1:].lower() in ("i", "j") and plain != ""
    match = _COMPLEX.fullmatch(plain)
    if not plain or match is None:
        return None
    if (
        has_unit and match["im"] is None and match["re"] is not None and match["sign"] is None
    ):  # "-5i": the only number is the imaginary part
        return complex(0.0, float(match["re"]))
    if has_unit and match["re"] is not None and match["sign"] is None:
        return None
    imaginary = float((match["sign"] or "") + (match["im"] or "1")) if has_unit else 0.0
    return complex(float(match["re"] or 0), imaginary)


def duration(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """Equal durations "D days", "HH:MM", "HH:MM:SS.mmm" or "D days, HH:MM:SS"; for a gold of days alone, the
    number of days suffices."""
    target, value = _seconds(gold), _seconds(said)
    if target is None:
        raise ValueError(f"answer: {gold!r} is not a duration")
    days_only = number(said) if ":" not in gold else None
    return value == target or (days_only is not None and days_only * 86_400 == target)


def _seconds(text: str) -> Decimal | None:
    match = _TIME.fullmatch(text.strip())
    if not text.strip() or match is None or (match["m"] is not None and int(match["m"]) > 59):
        return None
    return (
        Decimal(match["days"] or 0) * 86_400
        + Decimal(match["h"] or 0) * 3600
        + Decimal(match["m"] or 0) * 60
        + Decimal(match["s"] or 0)
    )


def factors(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """The same factors in any order, separated by a multiplication sign."""
    if not re.fullmatch(r"\s*\d{1,400}(?:\s*[×x*·]\s*\d{1,400})*\s*", said):
        return False
    return sorted(map(int, re.findall(r"\d+", said))) == sorted(map(int, re.findall(r"\d+", gold)))


def roles(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """The same role for every name, in any order: "Zoey is a knight, and Riley is a knave."."""
    target, found = _roles(gold), _roles(said)
    if target is None:
        raise ValueError(f'answer: {gold!r} is not of the form "NAME is a ROLE, and NAME is a ROLE"')
    return found == target


def _roles(text: str) -> dict[str, str] | None:
    parts = _BETWEEN.split(text.strip().rstrip(".").casefold())
    matches = [_STATEMENT.fullmatch(part.strip()) for part in parts]
    found = {match[1]: match[2] for match in matches if match}
    return found if len(found) == len(parts) else None


def word_groups(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """JSON lists of lists of words: the same groups, in any order and with their words in any order."""
    return _groups(gold, sorted) is not None and _groups(said, sorted) == _groups(gold, sorted)


def partitions(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """JSON lists of lists of words: the same lists, in any order."""
    return _groups(gold, list) is not None and _groups(said, list) == _groups(gold, list)


def _groups(text: str, form: Callable[[list[str]], list[str]]) -> list[list[str]] | None:
    value = as_json(text)
    if not isinstance(value, list) or not all(
        isinstance(group, list) and all(isinstance(word, str) for word in group) for group in value
    ):
        return None
    return sorted(form(group) for group in value)
