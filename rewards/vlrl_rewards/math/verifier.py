r"""kind="math" and kind="numeric": the right number, expression, list, set, interval or equation, however it is written.

Our own parser and exact arithmetic decide nearly everything in-process (bounded, nothing is evaluated as code); what it cannot read goes to
math-verify in a killable worker process. Numbers are compared exactly: a decimal may stand for a value that cannot be written out (1/3, sqrt 2) only
with six significant digits or more. Tolerances are options, relative to the gold.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from vlrl_rewards.dates import read_clock, same_moment
from vlrl_rewards.hedges import hedges, refuses
from vlrl_rewards.kinds import Case, verifier
from vlrl_rewards.math_pool import compare
from vlrl_rewards.mathanswer import NOTHING, find_answer, lone_number, plausible
from vlrl_rewards.mathcompare import equal, literal
from vlrl_rewards.mathread import Reading, read
from vlrl_rewards.mathtext import MAX_CHARS, plain_latex
from vlrl_rewards.mathtree import Node
from vlrl_rewards.mathvalue import NoValue, TooBig, exact, numeric, refuel, symbols
from vlrl_rewards.parsing import Answer, clean, committed, visible
from vlrl_rewards.units import Unit, conflict
from vlrl_rewards.verdict import Verdict, right, wrong

_SCALES = {"k": "thousand", "m": "million", "b": "billion", "t": "trillion"}
_SHORT_SCALE = re.compile(r"(?<=\d)\s?([kKMBT])(?=\W*$)")
_GLUED = re.compile(r"(?<=\d)(?=[a-zA-Z]{1,3}\b)")
_UNFIT = re.compile(r"\\(?:partial|nabla|[lc]?dots)\b|__|\.\.\.|…|\d\s+\d")  # what math-verify takes for products of letters, or should not see
_OPTION = re.compile(r"^\\text\w*\{\s*\(?[A-J][).:]\s*\}\s*|^\(?[A-J][).:]\s+(?=\S)")


@lru_cache(maxsize=4096)
def _read_gold(gold: str) -> Reading | None:
    inner = committed(gold) if re.search(r"\\boxed|<answer>|####", gold) else None
    return read(inner.text if inner and not inner.problem else gold)


def _worded(gold: str) -> bool:
    """Whether a gold answer is words, not mathematics ("ellipse")."""
    reading = _read_gold(gold)
    return (reading is None or reading.node[0] == "text") and re.search(r"[a-zA-Z]{3,}", _words(gold)) is not None


def _words(text: str) -> str:
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", plain_latex(clean(text)))
    return " ".join(re.sub(r"[^\w\s+-]", " ", text.casefold()).split())


def _texts(gold: str, said: str) -> bool:
    """Equal as words (for golds such as "no solution" or "\\text{east}")."""
    return _words(gold) == _words(said) != ""


def _scaled(reading: Reading, other: Unit | None) -> Node:
    """The value in the base unit, where both sides have a known unit."""
    unit = reading.unit
    if unit is None or other is None or unit.noun or other.noun or unit.factor == other.factor:
        return reading.node
    return ("mul", reading.node, ("num", unit.factor, 0))


def _same(gold: Reading, said: Reading) -> tuple[bool, str]:
    if conflict(gold.unit, said.unit):
        return False, "conflicting units"
    g, s = _scaled(gold, said.unit), _scaled(said, gold.unit)
    variants = [(g, s), *([(gold.listed, said.listed or s)] if gold.listed else []), *([(g, said.listed)] if said.listed else [])]
    for a, b in variants:
        try:
            if a is not None and b is not None and equal(a, b):
                return True, "equal"
        except (NoValue, RecursionError):
            continue
    return False, "different"


def judge(gold: str, answer: Answer, library: bool = True) -> tuple[bool, str, str]:
    """(equal, reason, route); without the library only what our own parser reads."""
    if len(answer.text) > MAX_CHARS:
        return False, "the answer is too long", "length"
    refuel()
    wanted = _read_gold(gold)
    if clean(gold) == clean(answer.text) or (wanted is None and _texts(gold, answer.text)):
        return True, "same text", "text"
    said = read(_OPTION.sub("", answer.text)) or read(answer.text)
    if wanted is not None and said is not None:
        if wanted.unit is not None and said.unit is None and symbols(said.node):  # "5m"
            said = read(_GLUED.sub(" ", answer.text)) or said
        if wanted.unit is not None and said.unit is None and symbols(said.node):
            return False, f"{clean(answer.text)[:80]!r} is not {gold[:80]!r}", "tree"
        try:
            same, why = _same(wanted, said)
        except TooBig as error:
            return False, f"beyond the bounds: {error}", "bound"
        return same, why if same else f"{why}: {clean(answer.text)[:80]!r} is not {gold[:80]!r}", "tree"
    return _by_library(gold, answer) if library else (False, "not read as mathematics", "text")


def _by_library(gold: str, answer: Answer) -> tuple[bool, str, str]:
    """Math-verify for what our parser does not read (integrals, sums, ...), on both sides."""
    if _monstrous(answer.text):
        return False, f"{clean(answer.text)[:80]!r} does not read as {gold[:80]!r}", "text"
    sides = [plain_latex(text).strip(" .") for text in (gold, answer.text)]
    mathematical = all(re.search(r"\\[a-z]+|[\d^_=]", side) for side in sides)
    wordy = any(re.search(r"(?<![\\a-zA-Z{])[a-zA-Z]{4,}", re.sub(r"\\[a-zA-Z]+", " ", side)) for side in sides)
    if not mathematical or wordy or hedges(answer.text) or _UNFIT.search(gold + answer.text) or len(sides[1]) > 600 or _monstrous(sides[1]):
        return False, f"{clean(answer.text)[:80]!r} does not read as {gold[:80]!r}", "text"
    same, why = compare(sides[0], sides[1])
    return bool(same), why if same else f"{why}: {clean(answer.text)[:80]!r} against {gold[:80]!r}", "math-verify"


def _monstrous(text: str) -> bool:
    """Towers of powers, factorials of factorials, deep nesting: nothing a gold answer is compared with."""
    return (
        bool(re.search(r"\d{400}|!\s*!|(?:\^\s*\{?\s*\(?\s*\w+\s*){3}|\^\{?\s*\d{7}", text))
        or text.count("^") > 60
        or text.count("{") > 200
        or text.count("!") > 8
    )


@verifier("math")
def math(case: Case) -> Verdict:
    """Mathematical equality of the committed answer and the gold answer. Raises ValueError on an empty gold."""
    gold = _gold_text(case)
    answer, problem = find_answer(case)
    if answer is None and problem == NOTHING and len(case.visible) < 400 and clean(case.visible) == clean(gold):
        return right("same text", extracted=gold, route="text>text")
    if answer is None and problem == NOTHING and _worded(gold):
        from vlrl_rewards.text import text as text_kind

        return text_kind(Case(_words(gold), case.response))
    if answer is None:
        return wrong(problem)
    details = {"extracted": answer.text.strip(), "span": answer.span}
    if _declined(case, answer, gold):
        return wrong("a refusal", **details)
    same, reason, route = judge(gold, answer)
    return (right if same else wrong)(reason, route=f"{answer.route}>{route}", **details)


def _gold_text(case: Case) -> str:
    gold = case.gold
    if isinstance(gold, (list, tuple)):
        gold = ", ".join(str(item) for item in gold)
    if gold is None or not str(gold).strip():
        raise ValueError("gold: the gold answer is empty, so no answer can be right")
    return str(gold).strip()


def _declined(case: Case, answer: Answer, gold: str) -> bool:
    """A refusal near the answer, or in a short response."""
    text = case.visible
    near = text[max(0, answer.start - 300) : answer.end + 200] if len(text) > 600 else text
    return refuses(near) and not refuses(gold)


@verifier("numeric")
def numeric_kind(case: Case, *, rel_tol: float = 0.0, abs_tol: float = 0.0, digits: int = 0, unit: str = "") -> Verdict:
    """Numeric equality: exact by default (six digits for values that cannot be written out), or within max(abs_tol, rel_tol * |gold|).

    digits: also accept an answer that rounds to the gold at its written precision if it has at least this many significant digits (0: off).
    unit: the unit of a gold that is written without one. Units convert; different kinds of unit are wrong.
    """
    refuel()
    gold_text = _gold_text(case)
    gold = _read_gold(gold_text + (f" {unit}" if unit else ""))
    value = None if gold is None else _number(gold.node)
    if gold is None or value is None:
        return math(case)
    answer, problem = find_answer(case)
    if answer is None:
        return wrong(problem)
    details = {"extracted": answer.text.strip(), "span": answer.span}
    if _declined(case, answer, gold_text):
        return wrong("a refusal", **details)
    if read_clock(gold_text) is not None and re.search(r"(?i)\d\s?[ap]\.?m", gold_text + answer.text):
        same = same_moment(gold_text, answer.text)
        return (right if same else wrong)("the same time" if same else "another time", route=f"{answer.route}>clock", **details)
    said = read(answer.text)
    try:
        number = None if said is None else _number(_scaled(said, gold.unit))
        if number is None:  # "2.5m"
            said = read(_GLUED.sub(" ", answer.text))
            number = None if said is None else _number(_scaled(said, gold.unit))
        if gold.unit is None and (number is None or _SHORT_SCALE.search(answer.text)):
            freer = _freer(answer.text)
            said, number = freer if freer[1] is not None else (said, number)
        if said is None or number is None:
            return wrong(f"{clean(answer.text)[:80]!r} is not a number", route=f"{answer.route}>none", **details)
        same, why = _same(gold, said)
        target = _number(_scaled(gold, said.unit)) or Fraction(0)
    except (TooBig, NoValue, RecursionError) as error:
        return wrong(f"no comparable number: {error}", route=f"{answer.route}>bound", **details)
    tolerance = max(Fraction(abs_tol), Fraction(rel_tol) * abs(target))
    if not same and why != "conflicting units" and abs(number - target) <= tolerance and tolerance:
        same, why = True, f"within {float(tolerance):g}"
    if not same and digits and why != "conflicting units":
        same = _rounds(gold.node, number, digits)
        why = "rounds to the gold" if same else why
    reason = why if same else f"{why}: {clean(answer.text)[:80]!r} is not {gold_text[:80]!r}"
    return (right if same else wrong)(reason, route=f"{answer.route}>number", **details)


def _freer(text: str) -> tuple[Reading | None, Fraction | None]:
    """ "1.5M", "none", the lone number of a clause."""
    lone = lone_number(text) if "\\" not in text else None
    scaled = _SHORT_SCALE.sub(lambda m: " " + _SCALES[m[1].lower()], text)
    tries = [scaled] if scaled != text else []
    tries += [text[slice(*lone)]] if lone else []
    for attempt in tries:
        said = read(attempt)
        number = None if said is None else _number(said.node)
        if number is not None:
            return said, number
    return None, None


def _number(node: Node) -> Fraction | None:
    """One real number, as a fraction (50 digits where it is irrational); None for anything else."""
    if node[0] == "rel" and node[2] == "=" and node[1][0] == "sym":
        node = node[3]
    if symbols(node) or node[0] in ("seq", "matrix", "text", "rel", "base", "cup"):
        return None
    try:
        value = exact(node)
        if value is not None:
            return value
        approx = numeric(node, {})
    except NoValue:
        return None
    return Fraction(str(approx.real)) if approx.imag == 0 else None


def _rounds(gold: Node, number: Fraction, digits: int) -> bool:
    short = literal(gold)
    if short is None or short[1] < digits or short[0] == 0:
        return False
    scale = len(str(abs(short[0].numerator) // short[0].denominator).lstrip("0")) if abs(short[0]) >= 1 else 0
    half = Fraction(1, 2) / Fraction(10) ** (short[1] - scale)
    return abs(number - short[0]) <= half


__all__ = ["find_answer", "math", "numeric_kind", "plausible", "visible"]
