"""Values of sums, products, integrals and limits, to as many digits as their methods give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from vlrl_rewards.mathtree import Node
from vlrl_rewards.mathvalue import FUEL, NoValue, TooBig, burn, close, context, numeric

MAX_TERMS = 2000
LIMIT_DIGITS = 30  # working digits of extrapolation
MOST = 60  # terms that extrapolation may look at
INFINITE: Node = ("const", "inf")


def series(node: Node, point: Mapping[str, Any]) -> Any:
    """A sum or product over whole numbers, a definite integral, a limit. Raises NoValue where there is no value, TooBig beyond the bounds."""
    kind, index, low, high, body = node
    mp = context()

    def at(value: Any) -> Any:
        return numeric(body, {**point, index: value})

    if kind == "lim":
        return _limit(at, low, high, point)
    if kind == "int":
        return mp.quad(at, [numeric(end, point) for end in (low, high)], maxdegree=5)
    first = _whole(low, point)
    if high == INFINITE:
        return _extrapolated(lambda: (mp.nsum if kind == "sum" else mp.nprod)(at, [first, mp.inf], maxterms=MOST))
    last = _whole(high, point)
    if last - first > MAX_TERMS:
        raise TooBig("a series")
    terms = [at(Fraction(i)) for i in range(first, last + 1)]
    return mp.fsum(terms) if kind == "sum" else mp.fprod(terms)


def _whole(node: Node, point: Mapping[str, Any]) -> int:
    value = numeric(node, point)
    if value != int(value.real):
        raise NoValue("bounds that are no whole numbers")
    return int(value.real)


def _extrapolated(compute: Callable[[], Any], digits: int = LIMIT_DIGITS) -> Any:
    """With fewer working digits (cheaper). Raises NoValue where it does not converge."""
    mp = context()
    burn(FUEL // 8)
    before, mp.dps = mp.dps, digits
    try:
        return compute()
    except (mp.NoConvergence, ZeroDivisionError, OverflowError, ValueError) as error:
        raise error if isinstance(error, TooBig) else NoValue("no convergence") from None
    finally:
        mp.dps = before


def _limit(at: Callable[[Any], Any], target: Node, side: str, point: Mapping[str, Any]) -> Any:
    mp = context()
    sign = -1 if target == ("neg", INFINITE) else 1
    endless = target in (INFINITE, ("neg", INFINITE))
    where = mp.mpf(0) if endless else numeric(target, point)
    directions = [1] if endless else [{"+": 1, "-": -1}[side]] if side else [1, -1]
    goal = mp.inf * sign if endless else where
    found = []
    for direction in directions:
        for digits in (LIMIT_DIGITS, LIMIT_DIGITS - 8):  # they must agree: one alone may settle on something that is no limit
            found.append(_extrapolated(lambda d=direction: mp.limit(at, goal, direction=d, maxterms=MOST), digits))
    if not all(close(value, found[0], 10) or abs(value - found[0]) < mp.mpf(10) ** -10 for value in found):
        raise NoValue("no limit")
    return found[0]
