r"""Formulas and reactions of chemistry: `\ce{2H2 + O2 -> 2H2O}`, "Ca(OH)_2", "SO4^2-", compared as written.

Two formulas are equal where they have the same atoms in the same groups and order, the same charge and, where
both name one, the same state. Two reactions are equal where both sides have the same amounts, in any order,
and the arrow is the same.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from vlrl_rewards.text.denials import doubted, hedges

_NAMES = (
    "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe "
    "Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te "
    "I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt "
    "Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr "
)
ELEMENTS = frozenset(_NAMES.split())
MAX_CHARS = 300
_SAYS = re.compile(
    r"^.*?(?:\b(?:is|are|get|gets|gives?|gave|obtain|have|yields?|forms?)\b|[:：])\s*", re.IGNORECASE
)
_REASON = re.compile(r"(?<![\s,]),?\s+(?:because|since|as|which|so)\b.*$", re.IGNORECASE | re.DOTALL)
_WRAPPED = re.compile(r"\\(?:ce|mathrm|text|rm|mathbf|textbf|mathsf)\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
_ARROWS = (
    (r"\\(?:rightleftharpoons|leftrightarrow|Leftrightarrow|leftrightarrows)(?![a-z])|<=+>|<-+>|⇌|⇄|↔", "⇌"),
    (r"\\(?:long)?(?:rightarrow|to)(?![a-z])|\\longrightarrow|-+>|=+>|→|⟶", "→"),
)
_SCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻₊₋−", "01234567890123456789+-+--")
_CHARGE = re.compile(r"\^\{?(\d*[+-]|[+-]\d*)\}?$|(?<=[A-Za-z)\]\d])([+-])$")
_STATE = re.compile(r"\s*\((aq|s|l|g)\)$")
_TERM = re.compile(r"(?P<count>\d+(?:/\d+)?)?\s*(?P<formula>\S+(?:\s*\((?:aq|s|l|g)\))?)")
_ATOM = re.compile(
    r"(?P<open>[(\[])|(?P<close>[)\]])_?\{?(?P<times>\d*)\}?|(?P<name>[A-Z][a-z]?)_?\{?(?P<count>\d*)\}?|(?P<dot>[·.*])(?P<many>\d*)"
)


class Formula(NamedTuple):
    """The atoms as a normal spelling ("Ca(OH)2"), the charge ("2-"), the state ("aq", "")."""

    atoms: str
    charge: str
    state: str


class Reaction(NamedTuple):
    """The amounts of each side, and the arrow ("→", "⇌")."""

    left: tuple[tuple[Formula, str], ...]
    right: tuple[tuple[Formula, str], ...]
    arrow: str


def read_formula(text: str) -> Formula | None:
    """A formula with more than one atom; None for anything else."""
    state = _STATE.search(text)
    body = text[: state.start()] if state else text
    charge = _CHARGE.search(body)
    sign = "".join(sorted((charge[1] or charge[2]), key=lambda c: c in "+-")) if charge else ""
    body = body[: charge.start()] if charge else body
    at, depth, written, names = 0, 0, [], 0
    while at < len(body):
        found = _ATOM.match(body, at)
        if found is None or found.end() == at:
            return None
        if found["name"]:
            if found["name"] not in ELEMENTS:
                return None
            names += 1
            written.append(found["name"] + (found["count"] if found["count"] != "1" else ""))
        else:
            depth += bool(found["open"]) - bool(found["close"])
            if depth < 0:
                return None
            mark = "(" if found["open"] else ")" + found["times"] if found["close"] else "·" + found["many"]
            written.append(mark)
        at = found.end()
    return Formula("".join(written), sign, state[1] if state else "") if names and not depth else None


def _plain(text: str) -> tuple[str, bool]:
    """(the text without LaTeX, whether it was marked as chemistry)."""
    marked = "\\ce" in text
    for _ in range(3):
        text = _WRAPPED.sub(r"\1", text)
    for pattern, arrow in _ARROWS:
        text = re.sub(pattern, f" {arrow} ", text)
    text = (
        text.replace("\\cdot", "·")
        .replace("$", " ")
        .replace("\\,", " ")
        .replace("\\;", " ")
        .replace("\\ ", " ")
    )
    text = re.sub(r"([⁰¹²³⁴⁵⁶⁷⁸⁹]*[⁺⁻])", r"^\1", text).translate(_SCRIPTS)
    return " ".join(text.split()).strip(" .*`"), marked


def read_chemistry(text: str) -> Formula | Reaction | None:
    """The formula or reaction of a text; None where it is none, or may be mathematics ("2H", "PV", "C2")."""
    if len(text) > MAX_CHARS or not re.search("[A-Z]", text):
        return None
    plain, marked = _plain(text)
    sides = re.split("([→⇌])", plain)
    if len(sides) == 1:
        formula = read_formula(plain.replace(" ", ""))
        if formula is None or marked:
            return formula
        several = len(re.findall("[A-Z]", formula.atoms)) > 1
        return formula if several and (re.search(r"\d|\(", formula.atoms) or formula.charge) else None
    if len(sides) != 3:
        return None
    left, right = _side(sides[0]), _side(sides[2])
    return None if left is None or right is None else Reaction(left, right, sides[1])


def formula_in(sentence: str) -> str | None:
    """The formula or reaction that a sentence states ("We get H2SO4."), as it stands there, or None."""
    if len(sentence) > MAX_CHARS or hedges(sentence) or doubted(sentence):
        return None
    said = _SAYS.sub("", sentence).strip(" .*")
    said = _REASON.sub("", said)
    return said if said and read_chemistry(said) is not None else None


def _side(text: str) -> tuple[tuple[Formula, str], ...] | None:
    amounts: Counter[tuple[Formula, str]] = Counter()
    for term in re.split(r"\s\+\s|(?<=[A-Za-z\d)])\+(?=\d?[A-Z])", text.strip()):
        found = _TERM.fullmatch(term.strip())
        formula = read_formula(found["formula"].replace(" ", "")) if found else None
        if found is None or formula is None:
            return None
        amounts[formula, found["count"] or "1"] += 1
    return tuple(sorted(amounts.elements()))


def same_chemistry(gold: Formula | Reaction, said: Formula | Reaction) -> bool:
    """Whether two formulas or two reactions are the same; states count only where both sides have them."""
    if isinstance(gold, Formula) or isinstance(said, Formula):
        return isinstance(gold, Formula) and isinstance(said, Formula) and _same(gold, said)
    return gold.arrow == said.arrow and all(
        len(a) == len(b) and all(m == n and _same(x, y) for (x, m), (y, n) in zip(a, b, strict=True))
        for a, b in ((gold.left, said.left), (gold.right, said.right))
    )


def _same(gold: Formula, said: Formula) -> bool:
    stated = not gold.state or not said.state or gold.state == said.state
    return stated and gold[:2] == said[:2]
