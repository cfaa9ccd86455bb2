"""The value of a mathematics tree: exact where it is rational, else 50 digits at fixed points. Every size is
bounded, so no expression takes long."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath

from vlrl_rewards.math.lexer import SERIES, Node

MAX_BITS = 200_000
DIGITS = 50
FUEL = 20_000  # steps of one comparison; a step takes about 10 microseconds
MAX_TERMS = 2000  # of a finite sum or product
LIMIT_DIGITS = 30  # working digits of extrapolation
MAX_EXTRAPOLATED = 60  # terms that extrapolation may evaluate
INFINITE: Node = ("const", "inf")
# Fixed, unrelated points; the negative ones distinguish |x| from x.
POINTS = (Fraction(7919, 3571), Fraction(-5417, 3203), Fraction(1889, 4051), Fraction(-911, 2719))


class TooBig(ValueError):
    """A value beyond the bounds."""


class NoValue(ValueError):
    """A tree that has no single number as its value."""


_local = threading.local()


def context() -> Any:
    """This thread's arithmetic context; mpmath's global precision is shared between threads."""
    if not hasattr(_local, "mp"):
        _local.mp = mpmath.ctx_mp.MPContext()
        _local.mp.dps = DIGITS
    return _local.mp


def refuel() -> None:
    """Start a comparison with FUEL steps."""
    _local.fuel = FUEL


def burn(steps: int) -> None:
    """Use steps. Raises TooBig when none are left, which bounds the time of every expression."""
    _local.fuel = getattr(_local, "fuel", FUEL) - steps
    if _local.fuel < 0:
        raise TooBig("too much to compute")


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _bounded(value: Fraction) -> Fraction:
    bits = _bits(value)
    if bits > MAX_BITS:
        raise TooBig("too many bits")
    burn(1 + bits * bits // 10**7)
    return value


def _power(base: Fraction, exp: Fraction) -> Fraction | None:
    if exp.denominator != 1:
        root = _root(base, exp.denominator)
        return None if root is None else _power(root, Fraction(exp.numerator))
    if base == 0 and exp <= 0:
        raise NoValue("zero to a power that is not positive")
    if base in (0, 1, -1):
        return base if base != -1 or exp.numerator % 2 else Fraction(1)
    if _bits(base) * abs(exp.numerator) > MAX_BITS:
        raise TooBig("a power")
    return base**exp.numerator


def _root(value: Fraction, n: int) -> Fraction | None:
    if n > 64 or _bits(value) > 20_000 or (value < 0 and n % 2 == 0):
        return None
    parts = []
    for part in (abs(value.numerator), value.denominator):
        root = _integer_root(part, n)
        if root**n != part:
            return None
        parts.append(root)
    return Fraction(parts[0], parts[1]) * (-1 if value < 0 else 1)


def _integer_root(value: int, n: int) -> int:
    low, high = 0, 1 << (value.bit_length() // n + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**n <= value else (low, middle - 1)
    return low


def _factorial(value: Fraction) -> Fraction | None:
    if value.denominator != 1 or value < 0:
        return None
    if value > 2000:
        raise TooBig("a factorial")
    out = 1
    for k in range(2, int(value) + 1):
        out *= k
    return Fraction(out)


def _binomial(n: Fraction, k: Fraction) -> Fraction | None:
    if n.denominator != 1 or k.denominator != 1 or not 0 <= k <= n:
        return None
    k = min(k, n - k)
    if k > 2000 or n.numerator.bit_length() > 64:
        raise TooBig("a binomial coefficient")
    out = 1
    for j in range(int(k)):
        out = out * (int(n) - j) // (j + 1)
    return Fraction(out)


def _divide(a: Fraction, b: Fraction) -> Fraction:
    if b == 0:
        raise NoValue("division by zero")
    return a / b


def _whole_numbers(function: Callable[..., int], values: tuple[Fraction, ...]) -> Fraction | None:
    return Fraction(function(*map(int, values))) if all(value.denominator == 1 for value in values) else None


_EXACT: dict[str, Callable[..., Fraction | None]] = {
    "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "div": _divide, "pow": _power, "neg": lambda a: -a,
    "fact": _factorial,
    "pct": lambda a: a / 100, "abs": lambda a: abs(a),
    "floor": lambda a: Fraction(a.__floor__()), "ceil": lambda a: Fraction(a.__ceil__()), "binom": _binomial,
    "gcd": lambda *a: _whole_numbers(math.gcd, a), "lcm": lambda *a: _whole_numbers(math.lcm, a),
    "mod": lambda a, b: a - b * (a / b).__floor__() if b else None,
    "root": lambda a, n: None if n.denominator != 1 or n < 1 else _root(a, int(n)), "max": lambda *a: max(a),
    "min": lambda *a: min(a),
}  # fmt: skip


def exact(node: Node) -> Fraction | None:
    """The rational value, or None if there is none or it cannot be determined. Raises TooBig, NoValue."""
    kind = node[0]
    if kind == "num":
        return node[1]
    if kind == "base" or kind in SERIES:
        return None
    rule = _EXACT.get(node[1] if kind == "fn" else kind)
    if rule is None:
        return None
    values = [exact(child) for child in node[2 if kind == "fn" else 1 :]]
    if any(value is None for value in values):
        return None
    try:
        result = rule(*values)
    except TypeError:  # a wrong number of arguments, as in "abs(1, 2)"
        return None
    return None if result is None else _bounded(result)


def _mp_power(mp: Any, a: Any, b: Any) -> Any:
    if a == 0:
        if mp.re(b) <= 0:
            raise NoValue("zero to a power that is not positive")
        return mp.mpf(0)
    if abs(b) * (abs(mp.log(abs(a))) + 4) > 1e6:
        raise TooBig("a power")
    return mp.power(a, b)


def _mp_root(mp: Any, a: Any, n: Any) -> Any:
    if mp.im(a) == 0 and mp.re(a) < 0 and n == int(mp.re(n)) and int(mp.re(n)) % 2 == 1:
        return -mp.root(-mp.re(a), int(mp.re(n)))
    return _mp_power(mp, a, 1 / n)


def _small(mp: Any, a: Any) -> Any:
    if abs(a) > 1e5:
        raise TooBig("an argument")
    return a


def _real(a: Any) -> Any:
    if a.imag != 0:
        raise NoValue("not real")
    return a.real


_NUMERIC: dict[str, Callable[..., Any]] = {
    "add": lambda mp, a, b: a + b, "mul": lambda mp, a, b: a * b, "div": lambda mp, a, b: a / b,
    "neg": lambda mp, a: -a, "pow": _mp_power,
    "root": _mp_root,
    "pct": lambda mp, a: a / 100, "deg": lambda mp, a: a * mp.pi / 180, "abs": lambda mp, a: abs(a),
    "fact": lambda mp, a: mp.gamma(_small(mp, a) + 1),
    "sin": lambda mp, a: mp.sin(_small(mp, a)), "cos": lambda mp, a: mp.cos(_small(mp, a)), "tan": lambda mp,
    a: mp.tan(_small(mp, a)),
    "cot": lambda mp, a: mp.cot(_small(mp, a)), "sec": lambda mp, a: mp.sec(_small(mp, a)), "csc": lambda mp,
    a: mp.csc(_small(mp, a)),
    "arcsin": lambda mp, a: mp.asin(a), "arccos": lambda mp, a: mp.acos(a), "arctan": lambda mp,
    a: mp.atan(a),
    "exp": lambda mp, a: mp.exp(_small(mp, a)),
    "sinh": lambda mp, a: mp.sinh(_small(mp, a)), "cosh": lambda mp, a: mp.cosh(_small(mp, a)),
    "tanh": lambda mp, a: mp.tanh(_small(mp, a)),
    "log": lambda mp, a: mp.log(a), "ln": lambda mp, a: mp.log(a), "lg": lambda mp, a: mp.log(a) / mp.log(10),
    "logbase": lambda mp, a, b: mp.log(a) / mp.log(b),
    "cbrt": lambda mp, a: _mp_root(mp, a, mp.mpf(3)), "floor": lambda mp, a: mp.floor(_real(a)),
    "ceil": lambda mp, a: mp.ceil(_real(a)),
    "binom": lambda mp, n, k: mp.binomial(_small(mp, n), _small(mp, k)),
}  # fmt: skip


def numeric(node: Node, point: Mapping[str, Fraction]) -> Any:
    """The value to 50 digits, with the symbols' values from `point`. Raises NoValue where the tree is no
    number, TooBig beyond the bounds."""
    mp = context()
    kind = node[0]
    burn(20 if kind in ("fact", "fn", "pow") else 1)
    if kind == "num":
        if _bits(node[1]) > 20_000:
            raise TooBig("a literal")
        return mp.mpf(node[1].numerator) / node[1].denominator
    if kind == "sym":
        value = point.get(node[1])
        if value is None:
            raise NoValue(f"the symbol {node[1]} has no value")
        return mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value
    if kind == "const":
        if node[1] in ("inf", "empty"):
            raise NoValue(node[1])
        return {"pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1)}[node[1]]
    rule = _NUMERIC.get(node[1] if kind == "fn" else kind)
    if rule is None and kind not in SERIES:
        raise NoValue(f"a {kind}")
    try:
        if rule is None:
            return series(node, point)
        value = rule(mp, *(numeric(child, point) for child in node[2 if kind == "fn" else 1 :]))
    except (TooBig, NoValue):
        raise
    except (
        ArithmeticError,
        TypeError,
        ValueError,
    ) as error:  # mpmath's own: a pole, a domain, a wrong number of arguments
        raise NoValue(str(error)) from None
    if mp.isinf(value) or mp.isnan(value):
        raise NoValue("not finite")
    return value


def series(node: Node, point: Mapping[str, Any]) -> Any:
    """A sum or product over integers, a definite integral, a limit. Raises NoValue where there is no value,
    TooBig beyond the bounds."""
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
        return _extrapolated(
            lambda: (mp.nsum if kind == "sum" else mp.nprod)(at, [first, mp.inf], maxterms=MAX_EXTRAPOLATED)
        )
    last = _whole(high, point)
    if last - first > MAX_TERMS:
        raise TooBig("a series")
    terms = [at(Fraction(i)) for i in range(first, last + 1)]
    return mp.fsum(terms) if kind == "sum" else mp.fprod(terms)


def _whole(node: Node, point: Mapping[str, Any]) -> int:
    value = numeric(node, point)
    if value != int(value.real):
        raise NoValue("bounds that are not integers")
    return int(value.real)


def _extrapolated(compute: Callable[[], Any], digits: int = LIMIT_DIGITS) -> Any:
    """The result of `compute` with `digits` working digits (fewer are cheaper). Raises NoValue where it does
    not converge."""
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
        for digits in (
            LIMIT_DIGITS,
            LIMIT_DIGITS - 8,
        ):  # both must agree: one precision alone may converge to a value that is no limit
            found.append(
                _extrapolated(
                    partial(mp.limit, at, goal, direction=direction, maxterms=MAX_EXTRAPOLATED), digits
                )
            )
    if not all(close(value, found[0], 10) or abs(value - found[0]) < mp.mpf(10) ** -10 for value in found):
        raise NoValue("no limit")
    return found[0]


def symbols(node: Node) -> set[str]:
    """Names of the free symbols."""
    if node[0] == "sym":
        return {node[1]}
    if node[0] in SERIES:
        ends = [child for child in node[2:4] if isinstance(child, tuple)]
        return set().union(*map(symbols, ends)) | (symbols(node[4]) - {node[1]})
    return set().union(*(symbols(child) for child in node[1:] if isinstance(child, tuple)), set())


def close(a: Any, b: Any, digits: int = DIGITS - 15) -> bool:
    """Equal to `digits` significant digits (relative to the larger, so that 1e-7 and 2e-7 differ)."""
    mp = context()
    scale = max(abs(a), abs(b))
    return scale == 0 or abs(a - b) <= scale * mp.mpf(10) ** -digits
