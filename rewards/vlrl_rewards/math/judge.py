"""Whether a committed answer equals a gold answer mathematically, units included.

The parser and the exact arithmetic of this package decide nearly everything in-process (bounded work, nothing
is evaluated as code). Text that they do not read goes to math-verify in a worker process that can be killed.
A decimal stands for a value that has no finite decimal form (1/3, sqrt 2) only with six significant digits or
more.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from vlrl.plugins.scoring import Answer
from vlrl_rewards.math.chemistry import read_chemistry, same_chemistry
from vlrl_rewards.math.equality import equal
from vlrl_rewards.math.latex import MAX_CHARS, plain_latex
from vlrl_rewards.math.lexer import Node
from vlrl_rewards.math.pool import compare
from vlrl_rewards.math.read import Reading, read
from vlrl_rewards.math.units import DEGREE, Unit, conflict, meant
from vlrl_rewards.math.value import NoValue, TooBig, exact, refuel, symbols
from vlrl_rewards.parsing import clean, committed
from vlrl_rewards.text.denials import hedges

GLUED_UNIT = re.compile(r"(?<=\d)(?!(?:st|nd|rd|th)\b)(?=[a-zA-Z]{1,3}\b)")
_UNFIT = re.compile(
    r"\\(?:partial|nabla|[lc]?dots)\b|__|\.\.\.|…|\d\s+\d"
)  # math-verify reads these as products of letters, or must not get them
_UNREAD = re.compile(  # words, and commands that the library would drop without a word
    r"\\(?:text|mathrm|ce|mbox|operatorname|tag|unit|SI|qty|vee|wedge|lor|land|mid|quad|big|cancel|not)\b"
    r"|(?<![\\a-zA-Z])[a-zA-Z]{2,}|[^\x20-\x7e]|[?@#;:\"`~$&]"
)
_OPTION = re.compile(r"^\\text\w*\{\s*\(?[A-J][).:]\s*\}\s*|^\(?[A-J][).:]\s+(?=\S)")


@lru_cache(maxsize=4096)
def read_gold(gold: str) -> Reading | None:
    """The tree and unit of a gold answer; None if it is not mathematics."""
    inner = committed(gold) if re.search(r"\\boxed|<answer>|####", gold) else None
    return read(inner.text if inner and not inner.problem else gold)


def is_worded(gold: str) -> bool:
    """Whether a gold answer is words and not mathematics ("ellipse")."""
    reading = read_gold(gold)
    return (reading is None or reading.node[0] == "text") and re.search(
        r"[a-zA-Z]{3,}", words_of(gold)
    ) is not None


def words_of(text: str) -> str:
    """The folded words of a text that may hold LaTeX."""
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", plain_latex(clean(text)))
    return " ".join(re.sub(r"[^\w\s+-]", " ", text.casefold()).split())


def _texts(gold: str, said: str) -> bool:
    """Whether two texts have the same words (for golds such as "no solution" or "\\text{east}")."""
    return words_of(gold) == words_of(said) != ""


def in_base_unit(reading: Reading, other: Unit | None) -> Node:
    """The value in the base unit if both sides have a known unit and these differ; else unchanged."""
    unit = reading.unit
    if unit is not None and other is not None:
        unit, other = meant(unit, other), meant(other, unit)
    if (
        unit is None
        or other is None
        or unit.noun
        or other.noun
        or unit[:2] + unit[3:] == other[:2] + other[3:]
    ):
        return reading.node
    node: Node = ("mul", reading.node, ("num", unit.factor, 0))
    if unit.turns:
        node = ("mul", node, ("pow", ("const", "pi"), ("num", Fraction(unit.turns), 0)))
    return ("add", node, ("num", unit.offset, 0)) if unit.offset else node


def _marked(reading: Reading, other: Reading) -> Reading:
    """The reading with a degree sign as its unit where the other side has an angular unit, or one that is no
    temperature."""
    other_unit = other.unit or (DEGREE if _degrees(other.node) is not None else None)
    bare = _degrees(reading.node)
    if (
        reading.unit is not None
        or bare is None
        or other_unit is None
        or other_unit.noun
        or other_unit.dims[0][0] == "temperature"
    ):
        return reading
    return replace(reading, node=bare, unit=DEGREE)


def _degrees(node: Node) -> Node | None:
    """x of x degrees, with its sign; None for any other tree."""
    if node[0] == "neg":
        inner = _degrees(node[1])
        return None if inner is None else ("neg", inner)
    return node[1] if node[0] == "deg" else None


def _shared(gold: Reading, said: Reading) -> bool:
    """Whether a percentage stands against, or in, an amount with a unit ("5%" against "$5", "$5%"), or
    against things ("5 points")."""
    units = [side.unit for side in (gold, said) if side.unit is not None]
    shares = [side.node[0] == "pct" for side in (gold, said)]
    return bool(units) and any(shares) and (not all(shares) or any(not unit.noun for unit in units))


def same_quantity(gold: Reading, said: Reading) -> tuple[bool, str]:
    """(whether the two quantities are equal, why)."""
    gold, said = _marked(gold, said), _marked(said, gold)
    if conflict(gold.unit, said.unit) or _shared(gold, said):
        return False, "conflicting units"
    if gold.node[0] not in ("pct", "neg") and said.node[0] == "pct" and _is_share(gold.node):
        said = replace(
            said, node=("div", said.node[1], ("num", Fraction(100), 0))
        )  # "0.25%" is no way to write 0.25
    g, s = in_base_unit(gold, said.unit), in_base_unit(said, gold.unit)
    variants = [
        (g, s),
        *([(gold.listed, said.listed or s)] if gold.listed else []),
        *((g, other) for other in (said.listed, said.decimal) if other),
    ]
    for a, b in variants:
        try:
            if a is not None and b is not None and equal(a, b):
                return True, "equal"
        except (NoValue, RecursionError):
            continue
    return False, "different"


def _is_share(node: Node) -> bool:
    """Whether a tree is a number between -1 and 1."""
    try:
        value = exact(node)
    except NoValue:
        return False
    return value is not None and -1 <= value <= 1


def judge(gold: str, answer: Answer, library: bool = True) -> tuple[bool, str, str]:
    """(equal, reason, route). Without `library` only this package's parser is used, not math-verify."""
    if len(answer.text) > MAX_CHARS:
        return False, "the answer is too long", "length"
    refuel()
    wanted = read_gold(gold)
    if clean(gold) == clean(answer.text) or (wanted is None and _texts(gold, answer.text)):
        return True, "same text", "text"
    chemical, formula = read_chemistry(gold), read_chemistry(answer.text)
    if chemical is not None and (formula is not None or wanted is None):
        same = formula is not None and same_chemistry(chemical, formula)
        return (
            same,
            "the same formula" if same else f"{clean(answer.text)[:80]!r} is not {gold[:80]!r}",
            "formula",
        )
    said = read(_OPTION.sub("", answer.text)) or read(answer.text)
    if wanted is not None and said is not None:
        if wanted.unit is not None and said.unit is None and symbols(said.node):  # "5m"
            said = read(GLUED_UNIT.sub(" ", answer.text)) or said
        if said.unit is not None and not said.unit.noun and wanted.unit is None and symbols(wanted.node):
            wanted = read_gold(GLUED_UNIT.sub(" ", gold)) or wanted
        if wanted.unit is not None and said.unit is None and symbols(said.node):
            return False, f"{clean(answer.text)[:80]!r} is not {gold[:80]!r}", "tree"
        try:
            same, why = same_quantity(wanted, said)
        except TooBig as error:
            return False, f"beyond the bounds: {error}", "bound"
        return same, why if same else f"{why}: {clean(answer.text)[:80]!r} is not {gold[:80]!r}", "tree"
    return _by_library(gold, answer) if library else (False, "not read as mathematics", "text")


def _by_library(gold: str, answer: Answer) -> tuple[bool, str, str]:
    """(equal, reason, route) by math-verify, for mathematics that this package's parser does not read."""
    if _too_complex(answer.text):
        return False, f"{clean(answer.text)[:80]!r} does not read as {gold[:80]!r}", "text"
    sides = [plain_latex(text).strip(" .") for text in (gold, answer.text)]
    if (
        not all(re.search(r"\\[a-z]+|[\d^_=]", side) and not _UNREAD.search(side) for side in sides)
        or hedges(answer.text)
        or _UNFIT.search(gold + answer.text)
        or len(sides[1]) > 600
        or _too_complex(sides[1])
    ):
        return False, f"{clean(answer.text)[:80]!r} does not read as {gold[:80]!r}", "text"
    same, why = compare(sides[0], sides[1])
    return (
        bool(same),
        why if same else f"{why}: {clean(answer.text)[:80]!r} against {gold[:80]!r}",
        "math-verify",
    )


def _too_complex(text: str) -> bool:
    """Whether the text has towers of powers, nested factorials or deep nesting, which no gold answer has."""
    return (
        bool(re.search(r"\d{400}|!\s*!|(?:\^\s*(?:\{\s*)?(?:\(\s*)?\w+\s*){3}|\^\{?\s*\d{7}", text))
        or text.count("^") > 60
        or text.count("{") > 200
        or text.count("!") > 8
    )
