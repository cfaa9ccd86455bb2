"""Families of solutions with an integer parameter ("x = pi/4 + k pi, k in Z"), vectors in i, j, k, and
matrices with a factor."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from vlrl_rewards.math.lexer import Node
from vlrl_rewards.math.value import NoValue, close, context, exact, numeric, symbols

Family = tuple[Any, Any]  # (a, b) of the numbers a + b n, n an integer
MAX_FAMILIES = 16
_LETTER = r"(?P<{}>[a-zA-Z])"
# Words that declare a parameter, behind the solutions: "for any integer n", "where m is an integer", "(k an
# integer)".
_DECLARED = re.compile(
    (
        r"(?<!\s)(?:[,;]\s*|(?<![,;])\s*)(?:\(\s*)?(?:(?:for|with|and|where)\s+)?(?:(?:any|all|every|each"
        r"|some)\s+(?:integers?|"
        r"whole\s+numbers?)\s+"
    )
    + _LETTER.format("a")
    + r"|(?:any\s+|all\s+|every\s+)?"
    + _LETTER.format("b")
    + r"\s+(?:(?:is|being|are|be)\s+)?(?:any\s+|an\s+|all\s+)?(?:arbitrary\s+)?integers?|integers?\s+"
    + _LETTER.format("c")
    + r"|(?:any\s+|all\s+)?"
    + _LETTER.format("d")
    + (
        r"\s*=\s*(?:\\ldots\s*,?\s*-\s*1\s*,\s*)?0\s*,\s*\\pm\s*1\s*(?:,\s*\\pm\s*2\s*)?,"
        r"?\s*\\ldots)\s*\)?\s*\.?$"
    )
)


def declared(text: str) -> str:
    """The text with a parameter that is declared in words as "n \\in \\mathbb{Z}"."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    found = _DECLARED.search(plain) if "integer" in plain or r"\pm" in plain else None
    if found is None or not plain[: found.start()].strip():
        return re.sub(
            (
                r"(?<!\s)(?:\s*[,;])?\s*\(\s*([a-zA-Z]\s*\\in\s*\\mathbb\s*\{Z\})\s*\)\s*$|(?<!\s)\s+(?:for"
                r"|where|"
                r"with)\s+([a-zA-Z]\s*\\in\s*\\mathbb\s*\{Z\})\s*$"
            ),
            r", \1\2",
            text,
        )
    name = next(filter(None, found.groupdict().values()))
    return rf"{plain[: found.start()]}, {name} \in \mathbb{{Z}}"


def parameter(node: Node) -> tuple[tuple[Node, ...], str] | None:
    """(solutions, name of the parameter) of a list that ends with "n in Z"; None for any other tree."""
    if node[0] != "seq" or node[1] != "" or len(node) < 5:
        return None
    last = node[-1]
    if (
        last[0] != "rel"
        or len(last) != 4
        or last[2] != "in"
        or last[1][0] != "sym"
        or last[3] != ("sym", "set Z")
    ):
        return None
    return tuple(node[3:-1]), last[1][1]


def _solution(node: Node) -> Node:
    """The right side of "x = ...", else the tree."""
    return node[3] if node[0] == "rel" and len(node) == 4 and node[2] == "=" and node[1][0] == "sym" else node


def _family(node: Node, name: str) -> Family | None:
    """a + b n; None unless the tree is linear in `name` and has no other symbol."""
    if symbols(node) - {name}:
        return None
    points = [numeric(node, {name: Fraction(n)}) for n in (0, 1, 2, -3)]
    start, step = points[0], points[1] - points[0]
    linear = _same(points[2], start + 2 * step) and _same(points[3], start - 3 * step)
    return (start, step) if linear and step != 0 else None


def _same(a: Any, b: Any) -> bool:
    return close(a, b) or abs(a - b) < context().mpf(10) ** -30


def _equal_families(one: Family, other: Family) -> bool:
    shift = (one[0] - other[0]) / one[1]
    return (_same(one[1], other[1]) or _same(one[1], -other[1])) and _same(
        shift, context().nint(context().re(shift))
    )


def same_families(gold: Node, said: Node, expand: Callable[[Node], list[Node]]) -> bool | None:
    """Whether two families have the same numbers; None if the gold answer declares no integer parameter.

    The answer may call its parameter by another name, and need not declare it. expand: splits plus-minus and
    lists into single solutions.
    """
    wanted = parameter(gold)
    if wanted is None:
        return None
    found = parameter(said)
    items = found[0] if found else (said[3:] if said[0] == "seq" and said[1] in ("", "{") else (said,))
    try:
        mine = [_family(item, wanted[1]) for solution in wanted[0] for item in expand(_solution(solution))]
        theirs = []
        for item in [item for solution in items for item in expand(_solution(solution))]:
            names = symbols(item)
            if len(names) != 1 or (found and names != {found[1]}):
                return False if all(mine) else None
            theirs.append(_family(item, names.pop()))
    except NoValue:
        return None
    if not all(mine) or len(mine) > MAX_FAMILIES:
        return None
    rest = list(theirs)
    for family in mine:
        match = next(
            (
                i
                for i, other in enumerate(rest)
                if other is not None and family is not None and _equal_families(family, other)
            ),
            None,
        )
        if match is None:
            return False
        del rest[match]
    return not rest


def same_parameter(gold: Node, said: Node) -> Node:
    """`said` with its declared integer parameter under the name that `gold` declares; unchanged unless both
    declare one."""
    mine, theirs = parameter(gold), parameter(said)
    if mine is None or theirs is None or mine[1] in symbols(said):
        return said

    def renamed(node: Node) -> Node:
        return (
            ("sym", mine[1])
            if node == ("sym", theirs[1])
            else tuple(renamed(c) if isinstance(c, tuple) and c else c for c in node)
        )

    return renamed(said)


def vector(node: Node, size: int) -> list[Any] | None:
    """The entries of a vector that is written with unit vectors ("2i - 3j + k"); None for any other tree."""
    names = ("i", "j", "k")[:size]
    if size not in (2, 3) or not symbols(node) <= {"i", "j", "k"} or not symbols(node) & {"j", "k"}:
        return None
    node = _unit_vectors(node)
    if not symbols(node) <= set(names):
        return None
    zero = dict.fromkeys(names, Fraction(0))
    try:
        start = numeric(node, zero)
        entries = [numeric(node, {**zero, name: Fraction(1)}) for name in names]
        probe = {name: Fraction(point) for name, point in zip(names, (2, 3, 5))}
        total = sum(entry * int(probe[name]) for name, entry in zip(names, entries))
        linear = start == 0 and _same(numeric(node, probe), total)
    except NoValue:
        return None
    return entries if linear else None


def _unit_vectors(node: Node) -> Node:
    """The tree with the constant i as a symbol."""
    if node == ("const", "i"):
        return ("sym", "i")
    return tuple(_unit_vectors(child) if isinstance(child, tuple) and child else child for child in node)


def scaled(node: Node) -> Node:
    """A matrix whose factor is multiplied in: "1/2 (2 4; 6 8)", "-A", "A/2"; any other tree unchanged."""
    if node[0] == "neg":
        inner = scaled(node[1])
        return (
            ("matrix", *(tuple(("neg", entry) for entry in row) for row in inner[1:]))
            if inner[0] == "matrix"
            else node
        )
    if node[0] not in ("mul", "div"):
        return node
    left, right = scaled(node[1]), scaled(node[2])
    if node[0] == "div" and left[0] == "matrix" and right[0] != "matrix":
        return ("matrix", *(tuple(("div", entry, right) for entry in row) for row in left[1:]))
    if node[0] == "mul" and (left[0] == "matrix") != (right[0] == "matrix"):
        whole, factor = (left, right) if left[0] == "matrix" else (right, left)
        return ("matrix", *(tuple(("mul", factor, entry) for entry in row) for row in whole[1:]))
    return node


def exact_values(items: tuple[Node, ...] | list[Node]) -> list[Fraction] | None:
    """The rational values of all items, sorted; None if one has none."""
    values = [exact(item) for item in items]
    return sorted(value for value in values if value is not None) if None not in values else None
