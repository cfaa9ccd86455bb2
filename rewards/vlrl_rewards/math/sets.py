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
        return all(child[0] in ("seq", "cup", "minus", "cap") for child in node[1:])
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
    if node[0] == "cup":
        left, right = _pieces(node[1]), _pieces(node[2])
        return None if left is None or right is None else left + right
    if node[0] == "minus" and node[2][0] == "seq" and node[2][1] == "{":
        return _without(_pieces(node[1]), node[2][3:])
    if node[0] == "rel":
        return _bounds(node)
    if node[0] == "seq" and node[1] == "{":
        return [Piece(item, True, item, True) for item in node[3:]]
    if node[0] == "seq" and all(is_inequality(item) for item in node[3:]) and len(node) > 4:
        return [piece for item in node[3:] for piece in _bounds(item) or []]
    if node[0] == "seq" and len(node) == 5 and node[1] in ("(", "["):
        return [Piece(node[3], node[1] == "[", node[4], node[2] == "]")]
    return None


def _without(whole: list[Piece] | None, points: tuple[Node, ...]) -> list[Piece] | None:
    if whole is None:
        return None
    for point in points:
        at = _ordinal(point)
        for i, piece in enumerate(whole):
            if _ordinal(piece.low) < at < _ordinal(piece.high):
                whole = (
                    whole[:i]
                    + [
                        Piece(piece.low, piece.low_closed, point, False),
                        Piece(point, False, piece.high, piece.high_closed),
                    ]
                    + whole[i + 1 :]
                )
                break
    return whole
