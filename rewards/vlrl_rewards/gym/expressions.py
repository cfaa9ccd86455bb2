"""Answers that are expressions: arithmetic that must use given numbers, polynomials, antiderivatives,
conclusions in propositional logic.

Expressions are parsed by `vlrl_rewards.math`, which bounds depth, size and time and evaluates no Python.
Checks are as in `readers`.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vlrl_rewards.math.equality import same_value
from vlrl_rewards.math.lexer import Node, NotMath
from vlrl_rewards.math.parser import parse
from vlrl_rewards.math.value import NoValue, TooBig, context, exact, numeric, refuel, symbols

MAX_CHARACTERS = 2000
MAX_LOGIC_TOKENS = 300
_ARITHMETIC = re.compile(r"[\d+\-*/() ]{1,400}")
_JUXTAPOSED = re.compile(r"[\d)]\s*\(|\)\s*\d|\d\s+\d|\*\s*\*|/\s*/")
_CENTRES = (
    (0.83, 0.71),
    (1.27, 0.44),
    (0.36, 1.19),
)  # of small discs of the complex plane, away from the axes
_STEPS = ((0.0, 0.0), (0.03, 0.01), (-0.02, 0.04), (0.05, -0.03))
_LOGIC_TOKEN = re.compile(r"\s*(<->|->|[A-Z](?![A-Z])|[∧∨¬→↔()&|~])")
_LOGIC_SIGNS = {"&": "∧", "|": "∨", "~": "¬", "->": "→", "<->": "↔"}
_LOGIC_LEVELS = ("↔", "→", "∨", "∧")  # from the loosest binding to the tightest

Formula = Callable[[Mapping[str, bool]], bool]


def _tree(text: str) -> Node | None:
    """The tree of an expression that writes powers as ** or ^; None for a text that is none."""
    if len(text) > MAX_CHARACTERS:
        return None
    try:
        return parse(text.replace("**", "^"))
    except NotMath:
        return None


def makes(target_of: Callable[[Mapping[str, Any]], int]) -> Callable[[str, str, Mapping[str, Any]], bool]:
    """An expression of + - * / and brackets over exactly the numbers `kept["numbers"]`, each used once, that
    equals `target_of(kept)`."""

    def check(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
        target, numbers = target_of(kept), Counter(int(n) for n in kept["numbers"])
        if not _ARITHMETIC.fullmatch(said) or _JUXTAPOSED.search(said):
            return False
        if Counter(map(int, re.findall(r"\d+", said))) != numbers or (tree := _tree(said)) is None:
            return False
        try:
            refuel()
            return exact(tree) == target
        except (NoValue, TooBig):
            return False

    return check


def polynomial(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """The same function of its symbols."""
    target, tree = _tree(gold), _tree(said)
    if target is None:
        raise ValueError(f"answer: {gold!r} is not an expression")
    if tree is None:
        return False
    try:
        refuel()
        return same_value(target, tree) is True
    except (NoValue, TooBig):
        return False


def antiderivative(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """An expression whose difference from the gold antiderivative is constant near several points of the
    complex plane. C is a constant.

    On each of three discs the difference is compared at four points to 15 digits; analytic functions with
    equal derivatives pass, others differ. An answer that has no value on two of the discs is wrong.
    """
    letter = str(kept["variable"])
    target, tree = _tree(gold), _tree(said)
    if target is None:
        raise ValueError(f"answer: {gold!r} is not an expression")
    known = {letter.lower(), letter.upper(), "C"}
    if tree is None or not symbols(tree) <= known or not {letter.lower(), letter.upper()} & symbols(tree):
        return False
    found = [
        outcome for centre in _CENTRES if (outcome := _constant_near(centre, target, tree, known)) is not None
    ]
    return len(found) >= 2 and all(found)


def _constant_near(centre: tuple[float, float], target: Node, tree: Node, letters: set[str]) -> bool | None:
    """Whether the difference of two trees is constant near `centre`; None where one of them has no value
    there."""
    mp = context()
    differences = []
    try:
        for step in _STEPS:
            place = mp.mpc(centre[0] + step[0], centre[1] + step[1])
            point = dict.fromkeys(letters, place) | {"C": mp.mpf(0)}
            refuel()
            left, right = numeric(target, point), numeric(tree, point)
            differences.append((left - right, abs(left) + abs(right)))
    except (NoValue, TooBig):
        return None
    first, scale = differences[0][0], max(size for _, size in differences) + 1
    return all(abs(difference - first) <= scale * mp.mpf(10) ** -15 for difference, _ in differences[1:])


# --- propositional logic ------------------------------------------------------------------------------------


def conclusion(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """A formula that follows from the premises together: from no single one of them, and it is no tautology.

    A premise repeated, or weakened by "or", is not paid. Contradictory premises raise ValueError: everything
    follows from them.
    """
    names, premises = sorted(kept["variables"]), [_formula(text) for text in kept["premises"]]
    worlds = [dict(zip(names, values)) for values in itertools.product((False, True), repeat=len(names))]
    if any(premise is None for premise in premises):
        raise ValueError(f"premises: {kept['premises']!r} are not formulas")
    holds = [[bool(premise and premise(world)) for world in worlds] for premise in premises]
    together = [all(values) for values in zip(*holds)]
    if not any(together):
        raise ValueError("premises: they contradict each other")
    formula = _formula(said)
    if formula is None or not set(re.findall("[A-Z]", said)) <= set(names):
        return False
    try:
        true = [formula(world) for world in worlds]
    except RecursionError:
        return False
    return (
        _follows(together, true) and not all(true) and not any(_follows(premise, true) for premise in holds)
    )


def _follows(premise: Sequence[bool], values: Sequence[bool]) -> bool:
    return all(value for given, value in zip(premise, values) if given)


def _formula(text: str) -> Formula | None:
    """The truth function of a formula of ∧ ∨ ¬ → ↔ and capital letters, the binary signs grouping to the
    left; None for any other text."""
    tokens: list[str] = []
    text, at = text.strip(), 0
    while at < len(text):
        match = _LOGIC_TOKEN.match(text, at)
        if match is None or len(tokens) > MAX_LOGIC_TOKENS:
            return None
        tokens.append(_LOGIC_SIGNS.get(match[1], match[1]))
        at = match.end()
    try:
        formula = _binary(tokens, 0)
    except (IndexError, RecursionError):
        return None
    return None if tokens else formula


def _binary(rest: list[str], level: int) -> Formula | None:
    """A formula whose signs bind at least as tightly as `level`, taken from the front of `rest`. Raises
    IndexError where the tokens end too early."""
    if level == len(_LOGIC_LEVELS):
        return _unary(rest)
    left = _binary(rest, level + 1)
    while left is not None and rest and rest[0] == _LOGIC_LEVELS[level]:
        rest.pop(0)
        right = _binary(rest, level + 1)
        left = None if right is None else _joined(_LOGIC_LEVELS[level], left, right)
    return left


def _unary(rest: list[str]) -> Formula | None:
    token = rest.pop(0)
    if token == "¬":
        inner = _unary(rest)
        return None if inner is None else _negated(inner)
    if token == "(":
        inner = _binary(rest, 0)
        return inner if rest.pop(0) == ")" else None
    return (lambda world: world.get(token, False)) if token.isalpha() and token.isascii() else None


def _negated(inner: Formula) -> Formula:
    return lambda world: not inner(world)


def _joined(sign: str, left: Formula, right: Formula) -> Formula:
    table: dict[str, Formula] = {
        "∧": lambda world: left(world) and right(world),
        "∨": lambda world: left(world) or right(world),
        "→": lambda world: not left(world) or right(world),
        "↔": lambda world: left(world) == right(world),
    }
    return table[sign]
