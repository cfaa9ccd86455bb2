"""Closed arithmetic and polynomial identities of the small logic (`norm_num` and `ring`)."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl_rewards.math.small_logic import Formula, LogicError, Term

MAX_BITS = 4096  # of a number
MAX_DEGREE = 256
MAX_BEATS = 300_000  # products of monomials that a proof may need: about a second

Polynomial = dict[tuple[str, ...], int]


@dataclass
class Heartbeats:
    """The products of monomials that are left; their number depends on the proof alone, not on the
    machine."""

    left: int = MAX_BEATS

    def spend(self, count: int) -> None:
        """Use some. Raises LogicError when there are none left."""
        self.left -= count
        if self.left < 0:
            raise LogicError(f"it needs more than {MAX_BEATS:,} products")


def truth(formula: Formula, beats: Heartbeats) -> bool:
    """Whether a formula without variables holds. Raises LogicError for one with variables or quantifiers."""
    kind, *parts = formula
    if kind in ("true", "false"):
        return bool(kind == "true")
    if kind in ("=", "<", "≤", "∣"):
        left, right = value(parts[0], beats), value(parts[1], beats)
        if kind == "∣":
            return right % left == 0 if left else right == 0
        return left == right if kind == "=" else left < right if kind == "<" else left <= right
    if kind == "not":
        return not truth(parts[0], beats)
    if kind in ("and", "or", "imp", "iff"):
        a, b = truth(parts[0], beats), truth(parts[1], beats)
        return {"and": a and b, "or": a or b, "imp": not a or b, "iff": a == b}[kind]
    raise LogicError("it has variables, which are not computed; use `ring`, `rw` or `intro`")


def value(term: Term, beats: Heartbeats) -> int:
    """The value of a term without variables."""
    found = polynomial(term, beats)
    if set(found) - {()}:
        raise LogicError("it has variables, which are not computed; use `ring` or `rw`")
    return found.get((), 0)


def polynomial(term: Term, beats: Heartbeats) -> Polynomial:
    """The normal form: coefficients by the sorted variables of a monomial, without zeros. Raises LogicError
    beyond MAX_BEATS and MAX_BITS."""
    kind, *parts = term
    if kind == "int":
        found: Polynomial = {(): parts[0]}
    elif kind in ("var", "bound"):
        if kind == "bound":
            raise LogicError("it has quantifiers, which are not computed")
        found = {(parts[0],): 1}
    elif kind == "neg":
        found = {names: -factor for names, factor in polynomial(parts[0], beats).items()}
    elif kind == "^":
        found, base = {(): 1}, polynomial(parts[0], beats)
        for _ in range(parts[1]):
            found = product(found, base, beats)
    else:
        left, right = polynomial(parts[0], beats), polynomial(parts[1], beats)
        found = product(left, right, beats) if kind == "*" else added(left, right, 1 if kind == "+" else -1)
    return {names: factor for names, factor in found.items() if factor}


def added(left: Polynomial, right: Polynomial, sign: int) -> Polynomial:
    """left + sign * right."""
    found = dict(left)
    for names, factor in right.items():
        found[names] = found.get(names, 0) + sign * factor
    return found


def product(left: Polynomial, right: Polynomial, beats: Heartbeats) -> Polynomial:
    """left * right."""
    beats.spend(len(left) * len(right))
    found: Polynomial = {}
    for names, factor in left.items():
        for others, other in right.items():
            key = tuple(sorted(names + others))
            found[key] = found.get(key, 0) + factor * other
            if found[key].bit_length() > MAX_BITS or len(key) > MAX_DEGREE:
                raise LogicError("the numbers are too large")
    return found
