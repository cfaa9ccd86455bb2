"""Whether two trees are the same number or function: exactly where that is rational, else by their values at fixed points."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from vlrl_rewards.mathnames import SERIES
from vlrl_rewards.mathtree import Node
from vlrl_rewards.mathvalue import DIGITS, POINTS, NoValue, close, context, exact, numeric, symbols


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
