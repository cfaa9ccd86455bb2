"""Units of measurement: dimensions and conversion factors. A word that is no known unit ("apples") is a counted noun."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

F = Fraction
# name: (dimension, factor to the dimension's base unit)
_TABLE: dict[str, tuple[str, Fraction]] = {
    "m": ("L", F(1)), "meter": ("L", F(1)), "metre": ("L", F(1)), "cm": ("L", F(1, 100)), "centimeter": ("L", F(1, 100)),
    "centimetre": ("L", F(1, 100)),
    "mm": ("L", F(1, 1000)), "millimeter": ("L", F(1, 1000)), "millimetre": ("L", F(1, 1000)), "km": ("L", F(1000)),
    "kilometer": ("L", F(1000)), "dm": ("L", F(1, 10)),
    "kilometre": ("L", F(1000)), "um": ("L", F(1, 10**6)), "nm": ("L", F(1, 10**9)), "in": ("L", F(254, 10000)), "inch": ("L", F(254, 10000)),
    "foot": ("L", F(3048, 10000)),
    "feet": ("L", F(3048, 10000)), "ft": ("L", F(3048, 10000)), "yd": ("L", F(9144, 10000)), "yard": ("L", F(9144, 10000)),
    "mile": ("L", F(1609344, 1000)), "mi": ("L", F(1609344, 1000)),
    "g": ("M", F(1)), "gram": ("M", F(1)), "kg": ("M", F(1000)), "kilogram": ("M", F(1000)), "mg": ("M", F(1, 1000)),
    "milligram": ("M", F(1, 1000)), "tonne": ("M", F(10**6)),
    "lb": ("M", F(45359237, 100000)), "pound": ("M", F(45359237, 100000)), "oz": ("M", F(45359237, 1600000)), "ounce": ("M", F(45359237, 1600000)),
    "s": ("T", F(1)), "sec": ("T", F(1)), "second": ("T", F(1)), "ms": ("T", F(1, 1000)), "millisecond": ("T", F(1, 1000)), "min": ("T", F(60)),
    "minute": ("T", F(60)),
    "h": ("T", F(3600)), "hr": ("T", F(3600)), "hour": ("T", F(3600)), "day": ("T", F(86400)), "week": ("T", F(604800)),
    "month": ("month", F(1)), "year": ("month", F(12)),
    "l": ("V", F(1)), "liter": ("V", F(1)), "litre": ("V", F(1)), "ml": ("V", F(1, 1000)), "milliliter": ("V", F(1, 1000)),
    "millilitre": ("V", F(1, 1000)), "gallon": ("V", F(3785411784, 10**9)),
    "n": ("N", F(1)), "newton": ("N", F(1)), "kn": ("N", F(1000)), "j": ("J", F(1)), "joule": ("J", F(1)), "kj": ("J", F(1000)),
    "w": ("W", F(1)), "watt": ("W", F(1)), "kw": ("W", F(1000)),
    "v": ("volt", F(1)), "volt": ("volt", F(1)), "a": ("amp", F(1)), "amp": ("amp", F(1)), "ampere": ("amp", F(1)), "hz": ("Hz", F(1)),
    "khz": ("Hz", F(1000)), "mhz": ("Hz", F(10**6)),
    "pa": ("Pa", F(1)), "kpa": ("Pa", F(1000)), "k": ("kelvin", F(1)), "kelvin": ("kelvin", F(1)), "c": ("celsius", F(1)),
    "celsius": ("celsius", F(1)), "mol": ("mol", F(1)), "mole": ("mol", F(1)),
    "ohm": ("ohm", F(1)), "dollar": ("$", F(1)), "usd": ("$", F(1)), "cent": ("$", F(1, 100)), "penny": ("$", F(1, 100)), "euro": ("eur", F(1)),
    "eur": ("eur", F(1)), "yen": ("jpy", F(1)),
    "degree": ("angle", F(1)), "deg": ("angle", F(1)), "radian": ("radian", F(1)), "rad": ("radian", F(1)), "fahrenheit": ("fahrenheit", F(1)),
    "f": ("fahrenheit", F(1)),
    "byte": ("B", F(1)), "kb": ("B", F(1000)), "mb": ("B", F(10**6)), "gb": ("B", F(10**9)), "mph": ("L/T", F(1609344, 3600000)),
    "kph": ("L/T", F(1000, 3600)), "kmh": ("L/T", F(1000, 3600)),
}  # fmt: skip
SCALE = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_NOT_NOUNS = frozenset((
    "or", "and", "not", "is", "are", "was", "be", "to", "by", "of", "the", "than", "a", "an", "no", "if", "else", "maybe", "possibly", "perhaps",
    "either", "neither", "nor", "but", "so", "because", "since", "as", "it", "this", "that", "wrong", "incorrect", "between", "from", "with",
    "without", "some", "any", "all", "none", "more", "less", "least", "most", "about", "after", "before", "when", "where", "which", "while",
    "only", "then", "plus", "minus", "times", "divided", "over", "under", "mod", "modulo", "base", "sin", "cos", "tan", "log", "ln", "exp",
    "sqrt", "pi", "infinity", "inf", "e", "i", "x", "y", "z", "u", "union", "for", "at", "on", "what", "how", "why", "who", "can", "cannot",
    "could", "should", "would", "will", "may", "might", "do", "does", "did", "has", "have", "had", "i'm", "we", "you", "he", "she", "they",
))  # fmt: skip
_PREFIX = re.compile(r"^(?:US\s?)?(?:\\\$|\$|€|£|¥)\s?(?=[-\d.])")
_WORDS = r"(?:\\text\{\s*[^{}0-9]{1,60}\}|[A-Za-zµ]+)"
_POWER = r"(?:\s?\^\s?\{?\s?-?\d\s?\}?)?"
_TAIL = re.compile(
    rf"(?:(?<=[\d)}}\]%.!])|(?<=\\pi)|(?<=pi))\s*(?P<unit>{_WORDS}{_POWER}(?:\s?(?:/|\\cdot|\*|-|\s|per)\s?{_WORDS}{_POWER}){{0,4}})\s*$"
)
_PART = re.compile(r"(?P<op>/|\bper\b)?\s*(?P<word>[A-Za-zµ]+)\s?(?:\^\s?\{?\s?(?P<power>-?\d)\s?\}?)?")


class Unit(NamedTuple):
    """A unit: the factor to its base unit, and its dimensions as sorted ((dimension, power), ...). `noun`: the words, if they are no unit."""

    factor: Fraction
    dims: tuple[tuple[str, int], ...]
    noun: str = ""


def singular(word: str) -> str:
    """An approximate singular that matches "cents" to "cent" and "boxes" to "box"."""
    word = word.lower()
    for plural, single in (("feet", "foot"), ("inches", "inch"), ("boxes", "box"), ("pennies", "penny"), ("people", "person"), ("men", "man")):
        if word == plural:
            return single
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word


def parse_unit(text: str) -> Unit | None:
    """The unit that `text` names ("km/h", "square feet", "\\text{cm}^2"); unknown words become a noun; None if the words are neither."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text).replace(r"\cdot", " ").replace("*", " ").replace("µ", "u")
    plain = re.sub(r"(?i)\b(?:sq(?:uare)?|cu(?:bic)?)\.?\s+([a-z]+)", lambda m: m[1] + ("^2" if m[0][:2].lower() == "sq" else "^3"), plain)
    plain = re.sub(r"(?i)\b([a-z]+)\s+(squared|cubed)\b", lambda m: m[1] + ("^2" if m[2].lower() == "squared" else "^3"), plain)
    factor, below = Fraction(1), False
    dims: dict[str, int] = {}
    nouns: list[str] = []
    for part in _PART.finditer(plain):
        word = part["word"]
        if word.lower() in _NOT_NOUNS and not (word.lower() in ("a", "i") and part["op"]):
            return None
        below = bool(part["op"])
        known = _TABLE.get(singular(word)) or _TABLE.get(word.lower())
        power = int(part["power"] or 1) * (-1 if below else 1)
        if known is None:
            nouns.append(singular(word))
            continue
        for name, sign in zip(known[0].split("/"), (1, -1)):
            dims[name] = dims.get(name, 0) + sign * power
        factor *= known[1] ** power
    if nouns:
        return Unit(Fraction(1), (), " ".join(nouns[:6]))
    dims = {name: power for name, power in dims.items() if power}
    return _volume(factor, dims) if dims else None


def _volume(factor: Fraction, dims: dict[str, int]) -> Unit:
    """The unit with litres as cubic lengths."""
    if "V" in dims:
        power = dims.pop("V")
        dims["L"] = dims.get("L", 0) + 3 * power
        factor *= Fraction(1, 1000) ** power
    return Unit(factor, tuple(sorted(dims.items())))


def split_unit(text: str) -> tuple[str, Unit | None]:
    """(number part, unit) of a quantity in `plain_latex` spelling. A single letter is a unit only after a space or in `\\text{}`."""
    found = _TAIL.search(text)
    if found is None:
        return text, None
    unit, head = found["unit"], text[: found.start()].rstrip()
    if re.fullmatch(r"[A-Za-z]", unit) and (found.start("unit") == found.start() or unit.lower() not in _TABLE):
        return text, None
    parsed = parse_unit(unit)
    return (head, parsed) if parsed is not None else (text, None)


def currency(text: str) -> tuple[str, Unit | None]:
    """(rest, unit) of an amount that starts with a currency sign. Call it before dollar signs are removed as LaTeX."""
    stripped = text.strip()
    found = _PREFIX.match(stripped)
    if found is None or (stripped.count("$") % 2 == 0 and "\\$" not in stripped and "$" in stripped):
        return text, None
    name = next((n for sign, n in (("€", "eur"), ("£", "gbp"), ("¥", "jpy")) if sign in found[0]), "$")
    return stripped[found.end() :], Unit(Fraction(1), ((name, 1),))


def conflict(gold: Unit | None, said: Unit | None) -> bool:
    """Whether both quantities have a unit and the units measure different things."""
    if gold is None or said is None:
        return False
    if gold.noun or said.noun:
        return "item" not in (gold.noun, said.noun) and not (gold.noun and said.noun and bool(set(gold.noun.split()) & set(said.noun.split())))
    return gold.dims != said.dims
