"""Numbers in other spellings: separators of other locales, quantities in words, bases and moduli; markup
around an answer."""

from __future__ import annotations

import html
import re
from fractions import Fraction

from vlrl_rewards.math.lexer import Node
from vlrl_rewards.math.units import DEGREE, Unit, parse_unit
from vlrl_rewards.math.written_numbers import number_words

_ENTITY = re.compile(r"&(?:#\d{1,6}|#[xX][0-9a-fA-F]{1,5}|[A-Za-z]{2,8});")
_TAGS = (
    "b|strong|i|em|u|p|span|div|font|center|big|small|mark|h[1-6]|li|ul|ol|td|tr|table|blockquote|math|mn|"
    "mrow|code|pre"
)
_HTML = re.compile(
    rf"</?(?:{_TAGS})(?:\s+[\w-]{{1,20}}\s?=\s?(?:\"[^\"<>]{{0,80}}\"|'[^'<>]{{0,80}}'))*\s*/?>|<br\s*/?>",
    re.IGNORECASE,
)
_FENCE = re.compile(
    (
        r"```(?:text|txt|plain|plaintext|math|maths|latex|tex|katex|markdown|md|answer|output|result)?[ "
        r"\t]*(?=\n)|(?<=\n)[ \t]*```(?=\s|$)"
    ),
    re.IGNORECASE,
)
_CODE_FENCE = re.compile(r"```[ \t]*[A-Za-z]", re.IGNORECASE)
_SIGN = r"(?P<sign>[-+]?)"
# Separators that can be read in one way only. A comma and three digits stays as it is: the lexer reads
# "1,234".
_LOCALES = tuple(
    (re.compile(rf"^{_SIGN}(?P<whole>{whole})(?P<rest>{rest})(?![\d.,'])"), group, point)
    for whole, group, rest, point in (
        (r"\d{1,3}(?:\.\d{3}){2,}", ".", r"(?:,\d+)?", ","),  # 4.915.112 and 1.234.567,89
        (r"\d{1,3}(?:\.\d{3})+", ".", r",\d{1,2}|,\d{4,}", ","),  # 1.234,56
        (r"\d{1,3}(?: \d{3})+", " ", r",\d+", ","),  # 1 234,56
        (r"\d+", " ", r",\d+(?=\s*\Z)", ","),  # 1234567,89 and the price €3,50 (see `local_number`)
        (r"\d{1,3}(?:'\d{3})+", "'", r"(?:\.\d+)?", "."),  # 1'234.56
        (r"\d{1,2}(?:,\d{2})+,\d{3}", ",", r"(?:\.\d+)?", "."),  # 12,34,567.89
    )
)
_PARTS = {
    "half": Fraction(1, 2),
    "quarter": Fraction(1, 4),
    "third": Fraction(1, 3),
    "three quarters": Fraction(3, 4),
    "two thirds": Fraction(2, 3),
}
_PLURAL = re.compile(r"(?:[a-z]{2}s|people|children|men|women|mice|sheep|fish|dice)$", re.IGNORECASE)
_PART_OF = re.compile(
    rf"(?:a\s+)?(?P<part>{'|'.join(_PARTS)})(?:\s+of)?\s+an?\s+(?P<unit>[a-z]+)", re.IGNORECASE
)
_AND_PART = re.compile(
    (
        rf"(?P<count>an?|[a-z-]+(?:\s[a-z-]+){{0,3}}|"
        rf"\d+)\s+(?P<unit>[a-z]+)\s+and\s+(?:a\s+)?(?P<part>{'|'.join(_PARTS)})"
    ),
    re.IGNORECASE,
)
_DMS = re.compile(
    r"(?P<sign>-?)(?P<d>\d+(?:\.\d+)?)\s?(?:\^\s?\{?\s?\\circ\s?\}?|degrees?|"
    r"deg)\s?(?:and\s)?(?:(?P<m>\d+(?:\.\d+)?)\s?(?:(?<=\d)'(?!')|(?<=\d)\s?\^\s?\{?\\prime\}?|"
    r"arc\s?min(?:utes?)?|min(?:utes?)?))?"
    r"\s?(?:and\s)?(?:(?P<s>\d+(?:\.\d+)?)\s?(?:''|\"|arc\s?sec(?:onds?)?|sec(?:onds?)?))?",
    re.IGNORECASE,
)
_BASES = {
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "twelve": 12,
    "sixteen": 16,
}
_BASED = re.compile(
    (
        rf"(?P<digits>[0-9]+)\s*(?:(?:,\s*)?(?:\(\s*)?(?:in\s+)?base[\s-]*\{{?(?P<base>\d+|"
        rf"{'|'.join(_BASES)})\}}?\s*\)?|"
        rf"_\s*(?:\{{\s*)?\\text\s*\{{\s*(?:base\s+)?(?P<word>{'|'.join(_BASES)})\s*\}}\s*\}}?)"
    ),
    re.IGNORECASE,
)
_CONGRUENT = re.compile(
    r"(?P<named>(?:[a-z]\s*)?(?:\\equiv|≡|(?:is\s+)?congruent\s+to)\s*)?(?P<value>-?\d{1,30})\s*"
    r"(?:,\s*)?(?P<mark>(?:\(\s*)?(?:\\pmod|\\?b?mod|modulo))\s*"
    r"(?:\{\s*)?(?:\(\s*)?(?P<modulus>\d{1,30})\s*(?:\)\s*)?(?:\}\s*)?\)?",
    re.IGNORECASE,
)


def without_markup(text: str) -> str:
    """The text with HTML tags of layout and the marks of code fences replaced by spaces; offsets do not
    change. Fences of code are kept."""
    if "<" in text:
        text = _HTML.sub(lambda m: " " * len(m[0]), text)
    if "```" in text and not _CODE_FENCE.search(_FENCE.sub("", text)):
        text = _FENCE.sub(lambda m: " " * len(m[0]), text)
    return text


def without_entities(text: str) -> str:
    """The text with HTML entities ("&lt;", "&#52;") as characters; "&" of a matrix is no entity."""
    return _ENTITY.sub(lambda m: html.unescape(m[0]), text) if "&" in text else text


def local_number(text: str, decimal_comma: bool = False) -> str:
    """The text with a number at its start in plain digits, where its separators can be read in one way only.

    "1234567,89" is a decimal; "3,5" is two numbers, and "3,50" too unless `decimal_comma` (a price: "€3,50").
    """
    for form, group, point in _LOCALES:
        found = form.match(text)
        if found is None:
            continue
        whole, rest = found["whole"].replace(group, ""), found["rest"].replace(point, ".")
        plain = form is _LOCALES[3][0]
        if plain and not ((decimal_comma and len(rest) == 3) or (len(whole) > 3 and len(rest) != 4)):
            continue
        return found["sign"] + whole + rest + text[found.end() :]
    return text


def decimal_comma(text: str) -> str:
    """ "0.25" of "0,25", which may also be two numbers; "" for anything else."""
    found = re.match(r"([-+]?0),(\d{1,15})(?![\d.,])", text)
    return "" if found is None else f"{found[1]}.{found[2]}{text[found.end() :]}"


def worded_quantity(text: str) -> tuple[Fraction, Unit | None] | None:
    """(number, unit) of "five kilometers", "twelve red apples", "half a liter", "an hour and a half",
    "twenty-five %"; None for anything else."""
    plain = text.strip()
    if len(plain) > 80:
        return None
    part = _PART_OF.fullmatch(plain)
    if part:
        return _measured(_PARTS[part["part"].lower()], part["unit"])
    both = _AND_PART.fullmatch(plain)
    if both:
        count = (
            Fraction(both["count"])
            if both["count"].isdigit()
            else Fraction(1)
            if both["count"].lower() in ("a", "an")
            else number_words(both["count"])
        )
        return None if count is None else _measured(count + _PARTS[both["part"].lower()], both["unit"])
    words = plain.rstrip("%").split()
    if len(words) < 2 - plain.endswith("%") or not words or not words[0][:1].isalpha():
        return None
    if plain.endswith("%"):
        share = number_words(" ".join(words))
        return None if share is None else (share / 100, None)
    for cut in range(len(words) - 1, 0, -1):
        count = number_words(" ".join(words[:cut]))
        if count is not None:
            counted = parse_unit(" ".join(words[cut:]))
            things = (
                counted is not None
                and counted.noun
                and count.denominator == 1
                and len(words) - cut <= 2
                and _PLURAL.search(words[-1])
            )
            return (count, counted) if counted is not None and (things or not counted.noun) else None
    return None


def _measured(count: Fraction, unit: str) -> tuple[Fraction, Unit | None] | None:
    parsed = parse_unit(unit)
    return None if parsed is None or parsed.noun else (count, parsed)


def degrees(text: str) -> tuple[Fraction, Unit] | None:
    """(degrees, unit) of "30^\\circ 15'" and "30 degrees 15 minutes 20 seconds"; None for anything else, also
    for plain degrees."""
    found = _DMS.fullmatch(text.strip())
    if found is None or not (found["m"] or found["s"]):
        return None
    minutes, seconds = Fraction(found["m"] or 0), Fraction(found["s"] or 0)
    if minutes >= 60 or seconds >= 60:
        return None
    total = Fraction(found["d"]) + minutes / 60 + seconds / 3600
    return (-total if found["sign"] else total), DEGREE


def in_base(text: str) -> Node | None:
    """("base", digits, base) of "101 in base 2"; None for anything else."""
    found = _BASED.fullmatch(text.strip())
    if found is None:
        return None
    named = (found["base"] or found["word"]).lower()
    base = _BASES.get(named) or (int(named) if named.isdigit() and len(named) < 3 else 0)
    return ("base", found["digits"], base) if 2 <= base <= 36 else None


def congruence(text: str) -> Node | None:
    """("cong", residue, modulus) of "3 mod 7", "x \\equiv 3 \\pmod{7}"; None for anything else. The residue
    is reduced."""
    found = _CONGRUENT.fullmatch(text.strip())
    if (
        found is None
        or int(found["modulus"]) == 0
        or not (found["named"] or found["mark"].startswith(("(", r"\pmod")) or "modulo" in found["mark"])
    ):
        return None  # "7 mod 3" is the number 1
    modulus = int(found["modulus"])
    return ("cong", int(found["value"]) % modulus, modulus)
