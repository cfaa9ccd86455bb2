"""Whether two trees are the same number or function: exactly where that is rational, else by their values at fixed points."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from vlrl_rewards.mathnames import SERIES
from vlrl_rewards.mathtree import Node
from vlrl_rewards.mathvalue import DIGITS, POINTS, NoValue, close, context, exact, numeric, symbols

ENOUGH_DIGITS = 6


def same_value(a: Node, b: Node) -> bool | None:
    """Whether two trees are the same number, or the same function of their symbols; None if that cannot be told. Raises TooBig, NoValue."""
    exact_a, exact_b = exact(a), exact(b)
    if exact_a is not None and exact_b is not None:
        return exact_a == exact_b
    names = sorted(symbols(a) | symbols(b))
    digits, whole = min(_digits(a), _digits(b)), _counting(a) | _counting(b)
    known = 0
    for shift in range(len(POINTS) + 2 if names else 1):
        point = {name: POINTS[(shift + 3 * i) % len(POINTS)] + Fraction(shift * (i + 1), 97) for i, name in enumerate(names)}
        point |= {name: Fraction(3 + (5 * shift + 2 * i) % 7) for i, name in enumerate(sorted(whole))}
        try:
            left = numeric(a, point)
        except NoValue:
            left = None
        try:
            right = numeric(b, point)
        except NoValue:
            right = None
        if (left is None) != (right is None):
            return False
        if left is not None and right is not None:
            known += 1
            if not close(left, right, digits):
                return _tiny_difference(left, right, a, b, point)
    return True if known else None


def _digits(node: Node) -> int:
    """Good digits: quadrature has fewer, extrapolation (limits, endless sums) fewest."""
    own = {"int": 15, "lim": 10}.get(node[0], 10 if node[0] in SERIES and node[3] == ("const", "inf") else DIGITS - 15)
    return min([own, *(_digits(child) for child in node[1:] if isinstance(child, tuple) and child)])


def _counting(node: Node) -> set[str]:
    """Names that bound a sum or product: they stand for whole numbers."""
    if not isinstance(node, tuple) or not node:
        return set()
    own = symbols(node[2]) | symbols(node[3]) if node[0] in ("sum", "prod") else set()
    return own.union(*(_counting(child) for child in node[1:] if isinstance(child, tuple)))


def _tiny_difference(left: Any, right: Any, a: Node, b: Node, point: Mapping[str, Fraction]) -> bool:
    """Zero reached by cancellation ("sin(pi)" against 0) counts as equal: the rounding error is absolute then."""
    return max(abs(left), abs(right)) < context().mpf(10) ** -(DIGITS - 12) and (exact(a) == 0 or exact(b) == 0)


def literal(node: Node) -> tuple[Fraction, int] | None:
    """(value, significant digits) of a signed decimal literal."""
    sign = 1
    while node[0] == "neg":
        sign, node = -sign, node[1]
    if node[0] == "pct":
        node = ("num", node[1][1] / 100, node[1][2]) if node[1][0] == "num" else node
    return (sign * node[1], node[2]) if node[0] == "num" and node[2] else None


def rounded(short: Node, full: Node, enough: int = ENOUGH_DIGITS) -> bool:
    """Whether `short` is a decimal of at least `enough` significant digits that `full`, which cannot be written out, rounds (or is cut) to."""
    decimal = literal(short)
    if decimal is None or decimal[1] < enough or symbols(full) or full[0] in ("seq", "matrix", "text", "rel"):
        return False
    other = literal(full)
    if other and other[1] <= decimal[1]:
        return False
    value = exact(full)
    if value is not None and _terminates(value) and not (other and other[1] >= enough):
        return decimal[1] >= 15 and abs(decimal[0] - value) <= abs(value) * Fraction(1, 10**14)
    mp = context()
    target = numeric(full, {})
    said = mp.mpf(decimal[0].numerator) / decimal[0].denominator
    if said == 0 or mp.im(target) != 0:
        return False
    step = mp.mpf(10) ** (int(mp.floor(mp.log(abs(said), 10))) - decimal[1] + 1)
    return abs(target - said) < step


def _terminates(value: Fraction) -> bool:
    below = value.denominator
    for prime in (2, 5):
        while below % prime == 0:
            below //= prime
    return below == 1
