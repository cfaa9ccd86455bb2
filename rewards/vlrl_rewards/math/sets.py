"""Sets of real numbers: intervals, unions and inequalities in one unknown, as sorted pieces of the real
line."""

from __future__ import annotations

from typing import NamedTuple

from vlrl_rewards.math.lexer import Node
from vlrl_rewards.math.value import INFINITE, NoValue, numeric, symbols

LOWEST: Node = ("neg", INFINITE)
_OPS = ("<", ">", "<=", ">=", "!=")


class Piece(NamedTuple):
    """An interval from low to high, each end closed or open."""

    low: Node
    low_closed: bool
    high: Node
    high_closed: bool


def is_real_set(node: Node) -> bool:
    """Whether `node` is written as an interval with a square bracket or an infinite end, a union, or an
    inequality in one symbol."""
    if node[0] in ("cup", "minus", "cap"):
        return all(child[0] in ("seq", "cup", "minus", "cap") or is_inequality(child) for child in node[1:])
    if node[0] == "seq":
        if node[1] in ("", "(") and len(node) >= 5 and all(is_inequality(item) for item in node[3:]):
            return True
        return len(node) == 5 and node[1] in ("(", "[") and node[2] in (")", "]")
    return is_inequality(node)


def is_inequality(node: Node) -> bool:
    """Whether `node` bounds one symbol ('1 < x <= 2')."""
    return (
        node[0] == "rel"
        and all(op in _OPS for op in node[2::2])
        and len(symbols(node)) == 1
        and sum(child[0] == "sym" for child in node[1::2]) == 1
    )


def _ordinal(node: Node) -> float:
    if node == INFINITE:
        return float("inf")
    if node == LOWEST:
        return float("-inf")
    value = numeric(node, {})
    if value.imag != 0:
        raise NoValue("a bound that is not real")
    return float(value.real)


def _bounds(node: Node) -> list[Piece] | None:
    """The pieces of "a < x <= b", "x > a", "a > x", "x != a"."""
    parts = node[1:]
    at = next(i for i, child in enumerate(parts[::2]) if child[0] == "sym") * 2
    low, low_closed, high, high_closed = LOWEST, False, INFINITE, False
    for i, bound in (
        (at - 2, parts[at - 2] if at else None),
        (at + 2, parts[at + 2] if at + 2 < len(parts) else None),
    ):
        if bound is None:
            continue
        op = parts[at - 1] if i < at else parts[at + 1]
        if op == "!=":
            return [Piece(LOWEST, False, bound, False), Piece(bound, False, INFINITE, False)]
        below = (op in ("<", "<=")) == (i < at)
        if below:
            low, low_closed = bound, "=" in op
        else:
            high, high_closed = bound, "=" in op
    return [Piece(low, low_closed, high, high_closed)]


def pieces(node: Node) -> list[Piece] | None:
    """Sorted pieces, or None if `node` is no union of intervals and points. Raises NoValue where a bound has
    no value."""
    found = _pieces(node)
    if found is None:
        return None
    return _merged(sorted(found, key=lambda piece: (_ordinal(piece.low), _ordinal(piece.high))))


def _merged(found: list[Piece]) -> list[Piece]:
    """The pieces with those merged that overlap, or touch at a point that one of them contains."""
    out: list[Piece] = []
    for piece in found:
        last = out[-1] if out else None
        gap = None if last is None else _ordinal(piece.low) - _ordinal(last.high)
        if (
            last is None
            or gap is None
            or gap > 0
            or (gap == 0 and not (last.high_closed or piece.low_closed))
        ):
            out.append(piece)
            continue
        ends = sorted((last, piece), key=lambda p: (_ordinal(p.high), p.high_closed))
        low_closed = last.low_closed or (piece.low_closed and _ordinal(piece.low) == _ordinal(last.low))
        out[-1] = Piece(last.low, low_closed, ends[-1].high, ends[-1].high_closed)
    return out


def _pieces(node: Node) -> list[Piece] | None:
    if node[0] in ("cup", "cap", "minus"):
        left, right = _pieces(node[1]), _pieces(node[2])
        if left is None or right is None:
            return None
        return (
            left + right
            if node[0] == "cup"
            else _common(left, right if node[0] == "cap" else _outside(right))
        )
    if node[0] == "rel":
        return _bounds(node)
    if node == ("const", "empty"):
        return []
    if node[0] == "seq" and node[1] == "{":
        return [Piece(item, True, item, True) for item in node[3:]]
    if node[0] == "seq" and all(is_inequality(item) for item in node[3:]) and len(node) > 4:
        return _together([_bounds(item) or [] for item in node[3:]])
    if node[0] == "seq" and len(node) == 5 and node[1] in ("(", "["):
        return [Piece(node[3], node[1] == "[", node[4], node[2] == "]")]
    return None


def _together(conditions: list[list[Piece]]) -> list[Piece]:
    """What several conditions leave: "x > 1, x < 5" is (1, 5). Conditions that exclude each other are
    alternatives: "x < 1, x > 5"."""
    found = conditions[0]
    for condition in conditions[1:]:
        found = _common(found, condition)
    return found or [piece for condition in conditions for piece in condition]


def _outside(found: list[Piece]) -> list[Piece]:
    """The complement of sorted pieces."""
    out, low, closed = [], LOWEST, False
    for piece in _merged(sorted(found, key=lambda piece: (_ordinal(piece.low), _ordinal(piece.high)))):
        out.append(Piece(low, closed, piece.low, not piece.low_closed and piece.low != LOWEST))
        low, closed = piece.high, not piece.high_closed and piece.high != INFINITE
    return [piece for piece in [*out, Piece(low, closed, INFINITE, False)] if not _is_void(piece)]


def _common(a: list[Piece], b: list[Piece]) -> list[Piece]:
    """The intersection of two unions of pieces."""
    out = []
    for x in a:
        for y in b:
            low = max((x.low, x.low_closed), (y.low, y.low_closed), key=lambda e: (_ordinal(e[0]), not e[1]))
            high = min((x.high, x.high_closed), (y.high, y.high_closed), key=lambda e: (_ordinal(e[0]), e[1]))
            out.append(Piece(*low, *high))
    return [piece for piece in out if not _is_void(piece)]


def _is_void(piece: Piece) -> bool:
    low, high = _ordinal(piece.low), _ordinal(piece.high)
    return low > high or (low == high and not (piece.low_closed and piece.high_closed))
