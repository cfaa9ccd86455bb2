r"""Right and wrong answers made from gold answers, at random.

Every equal rewriting must be accepted; every change of value, sign, unit, order or end, and every added
alternative, denial or retraction refused.

    draw = random.Random(0)
    variant = made(draw)
    assert verify(variant.gold, variant.response, variant.kind, variant.choices).correct == variant.right
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from vlrl_rewards.audit.frames import ALTERNATIVES, FRAMES, OF_VALUES, RANGES, TAKEN_AWAY
from vlrl_rewards.audit.locales import LOCALES, written


class Variant(NamedTuple):
    """A response to a gold answer, whether it is right, and how it was made."""

    gold: str
    response: str
    kind: str
    choices: tuple[str, ...]
    right: bool
    how: str


class Task(NamedTuple):
    """A gold answer, its rewritings, and answers that differ from it."""

    gold: str
    right: list[str]
    wrong: list[str]
    kind: str = "math"
    choices: tuple[str, ...] = ()
    joins: bool = True  # two answers side by side are no answer


_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_DIGITS = ("٠١٢٣٤٥٦٧٨٩", "۰۱۲۳۴۵۶۷۸۹", "०१२३४५६७८९", "๐๑๒๓๔๕๖๗๘๙", "０１２３４５６７８９")


def _words(number: int) -> str:
    """A whole number below 1,000 in words."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10 - 2] + (f"-{_ONES[number % 10]}" if number % 10 else "")
    rest = f" and {_words(number % 100)}" if number % 100 else ""
    return f"{_ONES[number // 100]} hundred{rest}"


def integer(draw: random.Random) -> Task:
    """A whole number."""
    n = draw.choice(
        (draw.randint(2, 99), draw.randint(100, 999), draw.randint(1000, 99_999), -draw.randint(2, 500))
    )
    k, size = draw.randint(2, 9), abs(n)
    right = [
        str(n), f"{n:,}", f"{n}.0", f"{n * k}/{k}", rf"\frac{{{n * k}}}{{{k}}}", f"x = {n}", f"({n})",
        rf"\text{{{n}}}", f"{n - k} + {k}", rf"{n}\,", f"${n}$",
        str(n).translate(str.maketrans("0123456789", draw.choice(_DIGITS))),
    ]  # fmt: skip
    right += [_words(n), _words(n).capitalize()] if 2 <= n < 1000 else []
    right += [str(n).replace("-", "−"), f"minus {size}"] if n < 0 else []
    other = n + draw.choice((-1, 1, 10, -10)) * draw.randint(1, 3)
    wrong = [
        str(other),
        str(-n),
        f"{n}{draw.randint(0, 9)}",
        f"1/{n}",
        f"{n}.5",
        f"{n}^2",
        rf"\sqrt{{{size}}}",
        f"> {n}",
        f"at least {n}",
        f"{n} +",
        f"{n} or",
        f"{n + 1:,}",
        rf"\frac{{{n * k + 1}}}{{{k}}}",
    ]
    return Task(str(n), right, wrong)


def rational(draw: random.Random) -> Task:
    """A fraction or a decimal."""
    value = Fraction(draw.randint(1, 60), draw.choice((2, 3, 4, 5, 6, 7, 8, 9, 12, 20, 25)))
    a, b = value.numerator, value.denominator
    if b == 1:
        return rational(draw)
    right = [
        f"{a}/{b}",
        rf"\frac{{{a}}}{{{b}}}",
        rf"\dfrac{{{a}}}{{{b}}}",
        rf"\tfrac{{{2 * a}}}{{{2 * b}}}",
        f"{3 * a}/{3 * b}",
        rf"x=\frac{{{a}}}{{{b}}}",
        rf"{{{a} \over {b}}}",
    ]
    ends = b
    for prime in (2, 5):
        while ends % prime == 0:
            ends //= prime
    gold = draw.choice(right[:3])
    if ends == 1:
        right += [
            f"{float(value):g}",
            f"{float(value):g}0" if "." in f"{float(value):g}" else f"{float(value):g}",
        ]
        gold = draw.choice([gold, f"{float(value):g}"])
    if a > b:
        right += [f"{a // b} {a % b}/{b}", rf"{a // b}\frac{{{a % b}}}{{{b}}}"]
    wrong = [
        f"-{a}/{b}",
        f"{b}/{a}",
        f"{a + 1}/{b}",
        rf"\frac{{{a}}}{{{b + 1}}}",
        f"{float(value):.1f}" if abs(round(float(value), 1) - value) > 1e-9 else f"{a}",
        f"{a}, {b}",
        f"{a}:{b + 1}",
    ]
    return Task(gold, right, wrong)


def _unit_table(text: str) -> dict[str, tuple[tuple[str, Fraction, tuple[str, ...]], ...]]:
    """{quantity: ((symbol, size, names), ...)} from lines "quantity: symbol size name|name, ..."."""
    table = {}
    for line in text.strip().splitlines():
        quantity, units = line.split(":")
        rows = (unit.split(maxsplit=2) for unit in units.split(","))
        table[quantity.strip()] = tuple(
            (symbol, Fraction(size), tuple(name.strip().split("|"))) for symbol, size, name in rows
        )
    return table


_UNITS = _unit_table("""
length: mm 1/1000 millimeters, cm 1/100 centimeters|centimetres, m 1 meters|metres, km 1000 kilometers
mass: mg 1/1000 milligrams, g 1 grams, kg 1000 kilograms
time: s 1 seconds, min 60 minutes, h 3600 hours
current: mA 1/1000 milliamperes, A 1 amperes|amps
area: cm^2 1/10000 square centimeters, m^2 1 square meters
volume: mL 1/1000 milliliters, L 1 liters
energy: J 1 joules, kJ 1000 kilojoules
voltage: V 1 volts, mV 1/1000 millivolts
capacity: µF 1/1000000 microfarads, F 1 farads, nF 1/1000000000 nanofarads
money: dollars 1 dollars, cents 1/100 cents
""")


def _number(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value)
    text = f"{float(value):.12f}".rstrip("0")
    return text if Fraction(text) == value else f"{value.numerator}/{value.denominator}"


def _quantity(value: Fraction, unit: str, names: Sequence[str], draw: random.Random) -> list[str]:
    number, tex = _number(value), unit.replace("µ", r"\mu ")
    power = f"^{{{unit[-1]}}}" if "^" in unit else ""
    name = tex.partition("^")[0]
    forms = [
        f"{number} {unit}",
        rf"{number}\text{{ {name}}}{power}",
        rf"{number}\,\mathrm{{{name}}}{power}",
        f"{number} {draw.choice(names)}",
        draw.choice(("${}$ {}", "**{}** {}", r"\({}\) {}", "\\boxed{{{}}} {}")).format(number, unit),
    ]
    if r"\mu" in tex:
        forms[1:3] = [rf"{number}\,\mu\mathrm{{{unit[1:]}}}"]
    return [*forms, f"{number}{unit}"] if len(unit) > 1 and "^" not in unit and unit[0] != "µ" else forms


def quantity(draw: random.Random) -> Task:
    """A number with a unit."""
    dimension = draw.choice(sorted(_UNITS))
    table = _UNITS[dimension]
    unit, factor, names = draw.choice(table)
    value = Fraction(
        draw.choice((draw.randint(2, 400), draw.randint(11, 99) * 10)), draw.choice((1, 1, 2, 10))
    )
    right = [*_quantity(value, unit, names, draw), _number(value)]
    for other, size, called in table:
        there = value * factor / size
        if other != unit and there.denominator in (1, 2, 4, 5, 10, 100, 1000) and there < 10**7:
            right += _quantity(there, other, called, draw)[:4]
    if dimension == "time" and unit != "s":
        whole, rest = divmod(value * factor, 3600)
        minutes = rest / 60
        if whole and minutes and minutes.denominator == 1:
            right += [
                f"{whole} h {minutes} min",
                f"{whole} hours {minutes} minutes",
                rf"{whole}\text{{ h }}{minutes}\text{{ min}}",
                f"{whole} hours and {minutes} minutes",
            ]
    wrong = [f"{_number(value + 1)} {unit}", f"-{_number(value)} {unit}"]
    wrong += [
        draw.choice(("{} {}", "${}$ {}", "\\boxed{{{}}} {}")).format(_number(value), other)
        for other, _, _ in table
        if other != unit
    ]
    wrong += [
        rf"{_number(value)}\text{{ {other.replace('^2', '')}}}" + ("^{2}" if "^" in other else "")
        for other, _, _ in table
        if other != unit and "µ" not in other
    ]
    wrong += [f"{_number(value)} {draw.choice(_UNITS[name])[0]}" for name in _UNITS if name != dimension]
    wrong += (
        [f"{_number(value)} {unit}^3", f"{_number(value)} zorks"]
        if "^" not in unit and dimension != "money"
        else [f"{_number(value)} zorks"]
    )
    return Task(f"{_number(value)} {unit}", right, wrong)


def interval(draw: random.Random) -> Task:
    """An interval, or the two outer pieces of the line."""
    a = draw.randint(-9, 8)
    b = a + draw.randint(1, 9)
    low, high = draw.choice("(["), draw.choice(")]")
    less, more = "<" + "=" * (low == "["), "<" + "=" * (high == "]")
    tex = {"<": "<", "<=": r"\le"}
    if draw.random() < 0.6:
        gold = f"{low}{a}, {b}{high}"
        right = [
            gold,
            rf"\left{low}{a}, {b}\right{high}",
            f"{a} {less} x {more} {b}",
            rf"{a} {tex[less]} x {tex[more]} {b}",
            rf"x \in {gold}",
            f"x {less.replace('<', '>')} {a} and x {more} {b}",
            rf"x {less.replace('<', '>')} {a}\text{{ and }}x {more} {b}",
        ]
        flipped = (")" if low == "(" else "]", "(" if high == ")" else "[")
        wrong = [
            f"{'(['[low == '(']}{a}, {b}{high}",
            f"{low}{a}, {b}{')]'[high == ')']}",
            f"{low}{a}, {b + 1}{high}",
            f"{low}{a - 1}, {b}{high}",
            f"{low}{-b}, {-a}{high}",
            f"x {less} {a}",
            rf"(-\infty, {b}{high}",
            f"x {less} {a} or x {more.replace('<', '>')} {b}",
            r"\mathbb{R}",
            f"{flipped[1]}{b}, {a}{flipped[0]}",
        ]
        if (low, high, a) == ("[", "]", -b) or a == -b:
            wrong.remove(f"{low}{-b}, {-a}{high}")
        return Task(gold, right, wrong, joins=False)
    gold = rf"(-\infty, {a}{')]'[low == '[']} \cup {'(['[high == ']']}{b}, \infty)"
    right = [
        gold,
        f"x {less} {a} or x {more.replace('<', '>')} {b}",
        rf"x {tex[less]} {a}\text{{ or }}x {'>' if more == '<' else chr(92) + 'ge'} {b}",
        rf"\mathbb{{R}} \setminus {'(['[low == '(']}{a}, {b}{')]'[high == ')']}",
    ]
    wrong = [
        rf"\mathbb{{R}} \setminus {'(['[low != '(']}{a}, {b}{')]'[high == ')']}",
        f"{low}{a}, {b}{high}",
        f"x {less} {a}",
        r"\mathbb{R}",
        f"{a} {less} x {more} {b}",
        rf"(-\infty, {a - 1}) \cup ({b}, \infty)",
    ]
    return Task(gold, right, wrong, joins=False)


def several(draw: random.Random) -> Task:
    """A set of numbers, or an ordered pair."""
    items = draw.sample(range(-20, 60), draw.randint(2, 4))
    if draw.random() < 0.4:
        a, b = items[:2]
        right = [
            f"({a}, {b})",
            rf"\left({a}, {b}\right)",
            f"({a},{b})",
            rf"\langle {a}, {b}\rangle",
            rf"(x, y) = ({a}, {b})",
            f"x = {a}, y = {b}",
        ]
        return Task(
            f"({a}, {b})",
            right,
            [
                f"({b}, {a})",
                f"({a}, {-b})" if b else f"({a}, 1)",
                f"({a}, {b}, 1)",
                f"{a}",
                f"({a + 1}, {b})",
            ],
            joins=False,
        )
    mixed = draw.sample(items, len(items))
    listed = ", ".join(map(str, mixed))
    right = [
        listed,
        rf"\{{{listed}\}}",
        f"{', '.join(map(str, mixed[:-1]))} and {mixed[-1]}",
        f"x = {' or x = '.join(map(str, mixed))}",
    ]
    wrong = [
        ", ".join(map(str, mixed[:-1])),
        f"{listed}, 77",
        ", ".join(map(str, [mixed[0] + 100, *mixed[1:]])),
        ", ".join(map(str, [*mixed[:-1], -mixed[-1] or 1])) if -mixed[-1] not in mixed[:-1] else "77",
    ]
    return Task(", ".join(map(str, items)), right, wrong, joins=False)


_FORMULAS = (
    ("H2SO4", "H2SO3"), ("Ca(OH)2", "CaOH2"), ("Fe2O3", "FeO3"), ("C6H12O6", "C6H6O6"),
    ("Al2(SO4)3", "AlSO4"), ("Na2CO3", "NaCO3"), ("NH4^+", "NH4^-"), ("SO4^2-", "SO3^2-"),
)  # fmt: skip
_REACTIONS = (("2H2", "O2", "2H2O"), ("N2", "3H2", "2NH3"), ("CH4", "2O2", "CO2"), ("4Fe", "3O2", "2Fe2O3"))


def chemistry(draw: random.Random) -> Task:
    """A formula or a reaction."""
    if draw.random() < 0.6:
        formula, other = draw.choice(_FORMULAS)
        body, _, charge = formula.partition("^")
        tex = (
            "".join(f"_{c}" if c.isdigit() else c for c in body.replace("12", "{12}"))
            .replace("_1_2", "12")
            .replace("{_1_2}", "_{12}")
        )
        right = [formula, rf"\ce{{{formula}}}"]
        right += (
            [rf"\mathrm{{{tex}}}", tex, body.translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))]
            if not charge and "12" not in body
            else []
        )
        return Task(
            formula,
            right,
            [other, rf"\ce{{{other}}}", formula.replace("2", "3", 1) if "2" in formula else other],
            joins=False,
        )
    a, b, c = draw.choice(_REACTIONS)
    gold = f"{a} + {b} -> {c}"
    right = [gold, f"{b} + {a} -> {c}", f"{a} + {b} → {c}", rf"\ce{{{gold}}}", rf"{a} + {b} \rightarrow {c}"]
    wrong = [
        f"{c} -> {a} + {b}",
        f"5{a.lstrip('0123456789')} + {b} -> {c}",
        f"{a} -> {c}",
        rf"\ce{{{c} -> {a} + {b}}}",
        f"{a} + {b} -> 7{c.lstrip('0123456789')}",
    ]
    return Task(gold, right, wrong, joins=False)


def choice(draw: random.Random) -> Task:
    """A letter of four options."""
    options = tuple(draw.sample(("cat", "dog", "cow", "hen", "fox", "owl", "red", "blue", "12", "30"), 4))
    place = draw.randrange(4)
    letter, other = "ABCD"[place], "ABCD"[(place + draw.randint(1, 3)) % 4]
    right = [
        letter,
        f"({letter})",
        f"{letter}.",
        f"Option {letter}",
        options[place],
        f"{letter}. {options[place]}",
        f"{letter}) {options[place]}",
        f"{letter}, not {other}",
    ]
    wrong = [
        other,
        f"({other})",
        options["ABCD".index(other)],
        f"{letter} and {other}",
        f"{letter} or {other}",
        f"{letter} (or any other letter)",
        "ABCD",
        "all of the above",
        f"{letter} is right and {letter} is wrong; {other} is right",
        f"not {letter}",
        f"Grade: {letter}",
        f"{letter} is right and wrong",
    ]
    return Task(letter, right, wrong, "mcq", options)


def yes_no(draw: random.Random) -> Task:
    """Yes or no."""
    gold, other = draw.choice((("yes", "no"), ("no", "yes")))
    word = {"yes": "true", "no": "false"}
    right = [gold, gold.capitalize(), f"{gold}.", word[gold], rf"\text{{{gold.capitalize()}}}"]
    wrong = [
        other,
        word[other],
        "yes and no",
        "yes or no",
        f"{gold}, but also {other}",
        f"{gold}/{other}",
        "maybe",
        f"{gold}, or {other}",
        f"{gold}, though {other}",
    ]
    return Task(gold, right, wrong, "yes_no")


def words(draw: random.Random) -> Task:
    """A name, or a number as text."""
    if draw.random() < 0.3:
        n = draw.randint(2, 900)
        return Task(str(n), [str(n), f"{n}."], [f"-{n}", f"−{n}", str(n + 1), f"{n} or {n + 1}"], "text")
    name = draw.choice(("Paris", "Marie Curie", "blue whale", "photosynthesis", "New York", "Mount Everest"))
    other = draw.choice(("London", "Isaac Newton", "red fox", "respiration", "Los Angeles", "K2"))
    return Task(
        name,
        [name, name.lower(), f"{name}.", f"the {name}", f'"{name}"'],
        [other, f"not {name}", f"{name} or {other}", f"{other}, not {name}"],
        "text",
    )


def localised(draw: random.Random) -> Variant:
    """A number in a sentence of another language: stated, changed, denied, or one of two."""
    language = draw.choice(sorted(LOCALES))
    locale = LOCALES[language]
    number = draw.choice((
        str(draw.randint(2, 999)), str(-draw.randint(2, 99)), f"0.{draw.randint(1, 99):02}",
        f"{draw.randint(1000, 9_999_999)}.{draw.randint(11, 99)}", str(draw.randint(10_000, 99_999_999)),
    ))  # fmt: skip
    other = number[:-1] + str((int(number[-1]) + 2) % 10)
    other = other if int(other.replace(".", "")) else f"{number}9"
    said, changed = written(number, locale), written(other, locale)

    def variant(text: str, right: bool, how: str) -> Variant:
        return Variant(number, text, draw.choice(("math", "numeric")), (), right, f"{language}: {how}")

    how = draw.random()
    if how < 0.45:
        return variant(draw.choice((*locale.states, *FRAMES[:4])).format(said), True, "stated")
    if how < 0.65:
        return variant(draw.choice(locale.states).format(changed), False, "another number")
    if how < 0.85:
        return variant(draw.choice(locale.denies).format(said), False, "denied")
    two = draw.choice(locale.offers).format(*draw.choice(((said, changed), (changed, said))))
    return variant(draw.choice((*locale.states, *FRAMES[:4])).format(two), False, "one of two")


TASKS: tuple[Callable[[random.Random], Task], ...] = (
    integer, rational, quantity, interval, several, chemistry, choice, yes_no, words,
)  # fmt: skip


def made(draw: random.Random) -> Variant:
    """One variant of a random task: a rewriting in a frame, a wrong answer in a frame, or a right one that is
    taken away, joined to another or made the end of a range."""
    if draw.random() < 0.15:
        return localised(draw)
    make = draw.choice(TASKS)
    task, name = make(draw), make.__name__
    frames = FRAMES + (OF_VALUES if task.kind == "math" else ())
    locale = LOCALES[draw.choice(sorted(LOCALES))]
    frames += locale.states
    form, other = draw.choice(task.right), draw.choice(task.wrong)
    plain = draw.choice([text for text in task.right if "not" not in text]).rstrip(".")

    def variant(text: str, right: bool, how: str) -> Variant:
        return Variant(task.gold, text, task.kind, task.choices, right, f"{name}: {how}")

    how = draw.random()
    if how < 0.02 and name in ("integer", "choice"):
        return variant(
            draw.choice(("Score: {}", "<answer>Grade: {}</answer>")).format(task.gold), False, "a mark"
        )
    if how < 0.45:
        return variant(draw.choice(frames).format(form), True, "right")
    if how < 0.75:
        return variant(draw.choice(frames).format(other), False, "wrong")
    if how < 0.87:
        denies = () if name == "yes_no" else locale.denies  # "No es no."
        return variant(draw.choice((*TAKEN_AWAY, *denies)).format(plain), False, "taken away")
    if not task.joins or task.kind != "math":
        return variant(draw.choice(frames).format(other), False, "wrong")
    first, second = draw.choice(((task.right[0], task.wrong[0]), (task.wrong[0], task.right[0])))
    if how > 0.99:
        return variant(rf"\boxed{{{first}}} (or {second})", False, "another behind a box")
    table = draw.choice((ALTERNATIVES, ALTERNATIVES, RANGES))
    return variant(draw.choice(FRAMES[:6]).format(draw.choice(table).format(first, second)), False, "joined")
