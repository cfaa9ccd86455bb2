"""Units of measurement: dimensions and exact conversion factors. A word that is no known unit ("apples") is a
counted noun.

The tables here decide which spellings name a unit, with their case where it matters ("mW" is no "MW"); pint
gives the factor of a unit, in exact fractions. Currencies, months, temperatures and angles are ours: pint
converts no currency, and a month has no fixed length in days.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

F = Fraction
_SHORT_PREFIXES = {
    "T": "tera", "G": "giga", "M": "mega", "k": "kilo", "h": "hecto", "d": "deci", "c": "centi", "m": "milli",
    "u": "micro", "n": "nano", "p": "pico",
    "f": "femto",
}  # fmt: skip
# Symbols with their case, each with the names that the prefixes of the metric system make of it: "mW" is
# milliwatt, "MW" is megawatt.
_SYMBOLS = {
    "m": "meter", "g": "gram", "s": "second", "A": "ampere", "K": "kelvin", "mol": "mole", "cd": "candela",
    "Hz": "hertz", "N": "newton",
    "Pa": "pascal",
    "J": "joule", "W": "watt", "V": "volt", "C": "coulomb", "F": "farad", "Ω": "ohm", "S": "siemens",
    "T": "tesla", "Wb": "weber", "H": "henry",
    "L": "liter", "l": "liter", "eV": "electron_volt", "cal": "calorie", "Wh": "watt_hour", "bar": "bar",
    "lm": "lumen", "lx": "lux",
    "Bq": "becquerel",
    "Gy": "gray", "Sv": "sievert",
}  # fmt: skip
_BYTES = {"b": "bit", "B": "byte"}  # with k, M, G and T only
# Long names, in any case and number; those of the first line take prefixes ("kilowatts").
_PREFIXED = (
    "meter", "metre", "gram", "gramme", "second", "ampere", "amp", "kelvin", "mole", "candela", "hertz",
    "newton", "pascal", "joule", "watt", "volt",
    "coulomb", "farad", "ohm", "siemens", "tesla", "weber", "henry", "liter", "litre", "calorie", "bit",
    "byte", "lumen", "lux", "becquerel", "bar",
)  # fmt: skip
_NAMES = {
    "metre": "meter", "gramme": "gram", "amp": "ampere", "litre": "liter",
    "in": "inch", "inch": "inch", "foot": "foot", "ft": "foot", "yard": "yard", "yd": "yard", "mile": "mile",
    "mi": "mile", "lb": "pound",
    "lbs": "pound",
    "pound": "pound", "ounce": "ounce", "oz": "ounce", "tonne": "metric_ton", "t": "metric_ton",
    "stone": "stone", "sec": "second", "min": "minute",
    "minute": "minute", "h": "hour", "hr": "hour", "hour": "hour", "d": "day", "day": "day", "week": "week",
    "wk": "week",
    "gallon": "gallon", "gal": "gallon",
    "quart": "quart", "pint": "US_pint", "cup": "cup", "tablespoon": "tablespoon", "tbsp": "tablespoon",
    "teaspoon": "teaspoon", "tsp": "teaspoon",
    "mph": "mile_per_hour", "kph": "kilometer_per_hour", "kmh": "kilometer_per_hour",
    "kmph": "kilometer_per_hour", "knot": "knot",
    "hectare": "hectare",
    "ha": "hectare", "acre": "acre", "cc": "cubic_centimeter", "micron": "micron", "angstrom": "angstrom",
    "lightyear": "light_year",
    "atm": "standard_atmosphere", "atmosphere": "standard_atmosphere", "psi": "psi", "mmhg": "mmHg",
    "horsepower": "horsepower", "hp": "horsepower",
    "kwh": "kilowatt_hour", "electronvolt": "electron_volt",
}  # fmt: skip
_MONEY = {  # name: (currency, share of its main unit)
    "dollar": ("usd", F(1)), "usd": ("usd", F(1)), "buck": ("usd", F(1)), "cent": ("usd", F(1, 100)),
    "penny": ("usd", F(1, 100)),
    "dime": ("usd", F(1, 10)), "nickel": ("usd", F(1, 20)), "euro": ("eur", F(1)), "eur": ("eur", F(1)),
    "gbp": ("gbp", F(1)), "quid": ("gbp", F(1)),
    "pence": ("gbp", F(1, 100)), "yen": ("jpy", F(1)), "jpy": ("jpy", F(1)), "yuan": ("cny", F(1)),
    "cny": ("cny", F(1)), "rmb": ("cny", F(1)),
    "rupee": ("inr", F(1)), "inr": ("inr", F(1)), "chf": ("chf", F(1)), "franc": ("chf", F(1)), "cad": ("cad",
        F(1)), "aud": ("aud", F(1)),
}  # fmt: skip
_SIGNS = {"$": "usd", "€": "eur", "£": "gbp", "¥": "jpy", "₹": "inr"}
SCALE = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_NOT_NOUNS = frozenset((
    "or", "and", "not", "is", "are", "was", "be", "to", "by", "of", "the", "than", "a", "an", "no", "if",
    "else", "maybe", "possibly", "perhaps",
    "either", "neither", "nor", "false", "roughly", "approximately", "but", "so", "because", "since", "as",
    "it", "this", "that",
    "wrong", "incorrect", "between", "from", "with",
    "without", "total", "altogether", "overall",
    "some", "any", "all", "none", "more", "less", "least", "most", "about", "after", "before",
    "when", "where", "which", "while",
    "only", "then", "plus", "minus", "times", "divided", "over", "under", "mod", "modulo", "base", "sin",
    "cos", "tan", "log", "ln", "exp",
    "sqrt", "pi", "infinity", "inf", "e", "i", "x", "y", "z", "u", "union", "for", "at", "on", "what", "how",
    "why", "who", "can", "cannot",
    "could", "should", "would", "will", "may", "might", "do", "does", "did", "has", "have", "had", "i'm",
    "we", "you", "he", "she", "they",
))  # fmt: skip
_PREFIX = re.compile(
    r"^(?:US\s?)?(?:\\\$|(?P<sign>[$€£¥₹])|(?P<code>USD|EUR|GBP|JPY|CNY|INR|CHF|CAD|AUD))\s?(?=[-\d.])"
)
_SUFFIX = re.compile(r"(?<=\d)\s?(?P<sign>[€£¥₹])$")
_WORDS = r"(?:\\text\{\s*[^{}0-9]{1,60}\}|[A-Za-zµμΩ]+)"
_POWER = r"(?:\s?\^\s?\{?\s?-?\d\s?\}?)?"
_TAIL = re.compile(
    rf"(?:(?<=[\d)}}\]%.!])|(?<=\\pi)|(?<=pi))\s*(?P<unit>{_WORDS}{_POWER}(?:\s?(?:/|\\cdot|\*|-|\s|"
    rf"per)\s?{_WORDS}{_POWER}){{0,4}})\s*$"
)
_MICRO_TEXT = re.compile(r"(?<=\d)\s*\\mu\s?\\text\{\s*([a-zA-Z]{1,3})\s*\}")
_MICRO = re.compile(r"(?<=\d)\s*\\mu\s?(?=(?:m|s|g|A|V|W|F|L|l|C|H|J|mol)\b)")
_PART = re.compile(r"(?:(?P<op>/|\bper\b)\s*)?(?P<word>[A-Za-zµμΩ]+)\s?(?:\^\s?\{?\s?(?P<power>-?\d)\s?\}?)?")

_UNIT_WORD = r"[A-Za-zµμΩ°]+(?:[\^²³]\d?)?"
_NAMED_BEFORE = re.compile(
    rf"\b(?:in|of)\s+({_UNIT_WORD}(?:\s?/\s?{_UNIT_WORD})?)\s*(?:[:=]|(?:is|are|was|were)\b)[\s$*]*$|"
    rf"^\s*({_UNIT_WORD}(?:\s?/\s?{_UNIT_WORD})?)\s*[:=][\s$*]*$"
)


class Unit(NamedTuple):
    """A unit: the factor to its base unit, and its dimensions as sorted ((dimension, power), ...).

    noun: the words, if they are no unit. offset: added behind the factor (temperatures). turns: the factor is
    multiplied by pi**turns (angles).
    """

    factor: Fraction
    dims: tuple[tuple[str, int], ...]
    noun: str = ""
    offset: Fraction = F(0)
    turns: int = 0


DEGREE = Unit(F(1), (("angle", 1),))
_SPECIAL = {
    "degree": DEGREE, "deg": DEGREE, "arcminute": Unit(F(1, 60), DEGREE.dims), "arcmin": Unit(F(1, 60),
        DEGREE.dims),
    "arcsecond": Unit(F(1, 3600), DEGREE.dims), "arcsec": Unit(F(1, 3600), DEGREE.dims),
    "radian": Unit(F(180), DEGREE.dims, turns=-1), "rad": Unit(F(180), DEGREE.dims, turns=-1),
    "revolution": Unit(F(360), DEGREE.dims), "kelvin": Unit(F(1), (("temperature", 1),)), "K": Unit(F(1),
        (("temperature", 1),)),
    "celsius": Unit(F(1), (("temperature", 1),), offset=F("273.15")), "C": Unit(F(1), (("temperature", 1),),
        offset=F("273.15")),
    "fahrenheit": Unit(F(5, 9), (("temperature", 1),), offset=F("459.67") * F(5, 9)),
    "F": Unit(F(5, 9), (("temperature", 1),), offset=F("459.67") * F(5, 9)),
    "month": Unit(F(1), (("month", 1),)), "year": Unit(F(12), (("month", 1),)), "yr": Unit(F(12),
        (("month", 1),)),
    "bit": Unit(F(1), (("bit", 1),)), "byte": Unit(F(8), (("bit", 1),)),
    **{name: Unit(share, ((code, 1),)) for name, (code, share) in _MONEY.items()},
}  # fmt: skip


@cache
def _spellings() -> tuple[dict[str, str], dict[str, set[str]]]:
    """(the name in pint of every spelling with its case, {spelling in lower case: names})."""
    exact = {**_NAMES, **_SYMBOLS, **{name: _NAMES.get(name, name) for name in _PREFIXED}}
    for prefix, long in _SHORT_PREFIXES.items():
        exact |= {
            prefix + symbol: long + name for symbol, name in _SYMBOLS.items() if prefix + symbol not in _NAMES
        }
        exact |= {long + name: long + _NAMES.get(name, name) for name in _PREFIXED}
        if prefix in "TGMk":
            exact |= {prefix + symbol: long + name for symbol, name in _BYTES.items()}
    exact["KB"] = "kilobyte"
    folded: dict[str, set[str]] = {}
    for spelling, name in exact.items():
        folded.setdefault(spelling.lower(), set()).add(name)
    return exact, folded


@cache
def registry() -> Any:
    """pint's registry of units, with exact fractions. Loading it takes about a second."""
    import pint  # imported here: it takes longer to import than most answers to judge

    return pint.UnitRegistry(non_int_type=Fraction)


@cache
def _worth(name: str) -> Unit:
    """The unit of a name in pint."""
    for own in ("bit", "byte"):
        if name.endswith(own):
            factor = registry().get_base_units(name)[0] / registry().get_base_units(own)[0]
            return Unit(Fraction(factor) * _SPECIAL[own].factor, _SPECIAL[own].dims)
    factor, dims = registry().get_base_units(name)[0], registry().get_dimensionality(name)
    return Unit(
        Fraction(factor),
        tuple(sorted((dimension.strip("[]"), int(power)) for dimension, power in dims.items())),
    )


@cache
def known(word: str) -> Unit | None:
    """The unit that one word names: with its case; a name in any case or number; in another case where only
    one unit is spelled so."""
    exact, folded = _spellings()
    plain = word.replace("µ", "u").replace("μ", "u")
    if plain in _SPECIAL or plain in exact:
        return _SPECIAL.get(plain) or _worth(exact[plain])
    if len(word) == 1 or word in ("st", "nd", "rd", "th"):  # "7th" is no terahenry
        return None
    for name in (word.lower(), singular(word)):
        if len(name) > 1 and name in _SPECIAL:
            return _SPECIAL[name]
        if name in _NAMES or name in _PREFIXED or (name in exact and len(name) > 3):
            return _worth(exact[name])
    names = folded.get(plain.lower(), set())
    return _worth(next(iter(names))) if len(names) == 1 else None


def singular(word: str) -> str:
    """An approximate singular that matches "cents" to "cent" and "boxes" to "box"."""
    word = word.lower()
    for plural, single in (
        ("feet", "foot"),
        ("inches", "inch"),
        ("boxes", "box"),
        ("pennies", "penny"),
        ("people", "person"),
        ("men", "man"),
    ):
        if word == plural:
            return single
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word


def parse_unit(text: str) -> Unit | None:
    """The unit that `text` names ("km/h", "square feet", "\\text{cm}^2"); unknown words become a noun; None
    if the words are neither."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text).replace(r"\cdot", " ").replace("*", " ")
    plain = re.sub(
        r"(?i)\b(?:sq(?:uare)?|cu(?:bic)?)\.?\s+([a-z]+)",
        lambda m: m[1] + ("^2" if m[0][:2].lower() == "sq" else "^3"),
        plain,
    )
    plain = re.sub(
        r"(?i)\b([a-z]+)\s+(squared|cubed)\b",
        lambda m: m[1] + ("^2" if m[2].lower() == "squared" else "^3"),
        plain,
    )
    below = False
    found: list[tuple[Unit, int]] = []
    nouns: list[str] = []
    for part in _PART.finditer(plain):
        word = part["word"]
        if word.lower() in _NOT_NOUNS and not (word.lower() in ("a", "i") and part["op"]) and word != "A":
            return None
        below = bool(part["op"])
        unit = known(word)
        power = int(part["power"] or 1) * (-1 if below else 1)
        if unit is None:
            nouns.append(singular(word))
            continue
        found.append((unit, power))
    if nouns:
        return Unit(Fraction(1), (), " ".join(nouns[:6]))
    return _product([(_electric(unit), power) for unit, power in found] if len(found) > 1 else found)


def _product(found: list[tuple[Unit, int]]) -> Unit | None:
    """The product of powers of units; None if nothing is left. The offset of a temperature counts only where
    it stands alone."""
    if len(found) == 1 and found[0][1] == 1:
        return found[0][0]
    factor, turns = Fraction(1), 0
    dims: dict[str, int] = {}
    for unit, power in found:
        for name, own in unit.dims:
            dims[name] = dims.get(name, 0) + own * power
        factor *= unit.factor**power
        turns += unit.turns * power
    left = tuple(sorted((name, power) for name, power in dims.items() if power))
    return Unit(factor, left, turns=turns) if left else None


def unit_behind(rest: str) -> int:
    """The length of the unit right behind a number, white space and a bracket included; 0 without one. "in"
    is no inch here ("5 in total")."""
    for more in (2, 1, 0):
        found = re.match(
            rf"[)\]]?\s?({_UNIT_WORD}(?:(?:\s?/\s?|\s){_UNIT_WORD}){{{more}}})(?![A-Za-z0-9_^µμΩ])", rest
        )
        parsed = parse_unit(found[1]) if found and found[1] != "in" else None
        if found and parsed is not None and not parsed.noun and (len(found[1]) > 1 or rest[0] in " )]"):
            return found.end()
    return 0


def unit_before(text: str) -> Unit | None:
    """The unit that the words before a number name ("the weight in grams is", "grams:"); None without one."""
    found = _NAMED_BEFORE.search(text[-80:])
    parsed = parse_unit(found[1] or found[2]) if found else None
    return None if parsed is None or parsed.noun else parsed


def split_unit(text: str) -> tuple[str, Unit | None]:
    """(number part, unit) of a quantity in `plain_latex` spelling. A single letter is a unit only after a
    space or in `\\text{}`."""
    text = _MICRO.sub(" µ", _MICRO_TEXT.sub(r" µ\1", text))
    found = _TAIL.search(text)
    if found is None:
        return text, None
    unit, head = found["unit"], text[: found.start()].rstrip()
    if re.fullmatch(r"[A-Za-z]", unit) and (found.start("unit") == found.start() or known(unit) is None):
        return text, None
    parsed = parse_unit(unit)
    if parsed is not None and parsed.noun and text[found.start() : found.start() + 1].isalpha():
        return text, None  # "17ish"
    return (head, parsed) if parsed is not None else (text, None)


def currency(text: str) -> tuple[str, Unit | None]:
    """(rest, unit) of an amount with a currency sign or code before it, or a sign behind it. Call it before
    dollar signs are removed as LaTeX."""
    stripped = text.strip()
    found, last = _PREFIX.match(stripped), _SUFFIX.search(stripped)
    if found is None and last is not None:
        return stripped[: last.start()], Unit(Fraction(1), ((_SIGNS[last["sign"]], 1),))
    if found is None or (stripped.count("$") % 2 == 0 and "\\$" not in stripped and "$" in stripped):
        return text, None
    code = found["code"].lower() if found["code"] else _SIGNS[found["sign"] or "$"]
    rest = stripped[found.end() :]
    return re.sub(rf"\s?{code}$", "", rest, flags=re.IGNORECASE), Unit(Fraction(1), ((code, 1),))


def _electric(unit: Unit) -> Unit:
    """Coulomb of C, farad of F; any other unit unchanged."""
    names = {_SPECIAL["C"]: "coulomb", _SPECIAL["F"]: "farad"}
    return _worth(names[unit]) if unit in names else unit


def meant(unit: Unit, other: Unit) -> Unit:
    """What a unit with two meanings means beside another: pounds sterling, cents of a euro, coulomb (C),
    farad (F)."""
    if other.dims == (("gbp", 1),) and unit == known("pound"):
        return Unit(Fraction(1), other.dims)
    if other.dims == (("eur", 1),) and unit == known("cent"):
        return Unit(Fraction(1, 100), other.dims)
    return _electric(unit) if _electric(unit).dims == other.dims else unit


def conflict(gold: Unit | None, said: Unit | None) -> bool:
    """Whether both quantities have a unit and the units measure different things."""
    if gold is None or said is None:
        return False
    if gold.noun or said.noun:
        return "item" not in (gold.noun, said.noun) and not (
            gold.noun and said.noun and bool(set(gold.noun.split()) & set(said.noun.split()))
        )
    return meant(gold, said).dims != meant(said, gold).dims
