"""Whether two mathematics trees mean the same answer: numbers, functions, lists, sets, tuples, intervals, equations, matrices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from vlrl_rewards.mathsame import literal, rounded, same_value
from vlrl_rewards.mathtree import Node
from vlrl_rewards.mathvalue import POINTS, NoValue, TooBig, close, context, numeric, symbols

ZERO: Node = ("num", Fraction(0), 0)
INFINITE: Node = ("const", "inf")
FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
MAX_ITEMS = 64


def equal(gold: Node, said: Node) -> bool:
    """Whether `said` is the answer `gold`. Raises TooBig where the values are beyond the bounds, NoValue where nothing can be told."""
    gold, said = _without_abs(_without_domain(gold)), _without_abs(_without_domain(said))
    if gold == said:
        return True
    if _has(gold, "pm") or _has(said, "pm"):
        return _pm_equal(gold, said)
    if gold[0] == "rel" or said[0] == "rel":
        return _relations(gold, said)
    if _is_set(gold) and _is_set(said):
        return _same_pieces(gold, said)
    if gold[0] == "matrix" or said[0] == "matrix":
        return _matrices(gold, said)
    if gold[0] == "seq" or said[0] == "seq":
        return _sequences(gold, said)
    if "text" in (gold[0], said[0]) or gold[0] == "base" or said[0] == "base":
        both = gold[0] == said[0]
        return not both and _digits(gold) is not None and _digits(gold) == _digits(said)
    return _numbers(gold, said)


def _without_domain(node: Node) -> Node:
    """ "2n + 1, n in Z" without its last part."""
    if node[0] == "seq" and node[1] == "" and len(node) > 4 and node[-1][0] == "rel" and node[-1][2] == "in":
        return node[3] if len(node) == 5 else node[:-1]
    return node


def _without_abs(node: Node) -> Node:
    """ "|x| < a" is -a < x < a; "|x| > a" is x < -a or x > a."""
    if node[0] != "rel" or len(node) != 4 or node[1][:2] != ("fn", "abs") or node[1][2][0] != "sym" or node[2] not in FLIP:
        return node
    symbol, op, bound = node[1][2], node[2], node[3]
    if op in ("<", "<="):
        return ("rel", ("neg", bound), op, symbol, op, bound)
    outside = ("seq", "", "", ("rel", symbol, FLIP[op], ("neg", bound)), ("rel", symbol, op, bound))
    return outside if op in (">", ">=") else node


def _digits(node: Node) -> str | None:
    """What a number in a base is written as (None if no such base writes that); a bare number may leave its base out, two bases must agree."""
    if node[0] == "base":
        return node[1] if 2 <= node[2] <= 36 and all(int(digit) < node[2] for digit in node[1] if digit.isdigit()) else None
    return str(node[1]) if node[0] == "num" else None


def _numbers(gold: Node, said: Node) -> bool:
    for kind in ("pct", "deg"):
        if (gold[0] == kind) != (said[0] == kind) and not (gold[0] == "neg" or said[0] == "neg"):
            a = gold[1] if gold[0] == kind else gold
            b = said[1] if said[0] == kind else said
            if same_value(a, b):
                return True
    if _unbounded(gold) or _unbounded(said):
        return False
    result = same_value(gold, said)
    if result is None:
        raise NoValue("neither side has a value")
    return result or rounded(gold, said) or rounded(said, gold)


def _unbounded(node: Node) -> bool:
    return (node[0] == "const" and node[1] in ("inf", "empty")) or (node[0] == "neg" and _unbounded(node[1]))


def _has(node: Node, kind: str) -> bool:
    return node[0] in (kind, "mp" if kind == "pm" else kind) or any(_has(child, kind) for child in node[1:] if isinstance(child, tuple) and child)


def _with_sign(node: Node, plus: bool) -> Node:
    if node[0] in ("pm", "mp"):
        up = plus == (node[0] == "pm")
        second = _with_sign(node[2], plus)
        return ("add", _with_sign(node[1], plus), second if up else ("neg", second))
    return tuple(_with_sign(child, plus) if isinstance(child, tuple) and child else child for child in node)


def _expand(node: Node) -> list[Node]:
    if node[0] == "seq" and node[1] in ("", "{"):
        return [item for child in node[3:] for item in _expand(child)]
    if node[0] == "rel" and len(node) == 4 and node[2] == "=" and node[1][0] == "sym":
        return _expand(node[3])
    return [_with_sign(node, True), _with_sign(node, False)] if _has(node, "pm") else [node]


def _pm_equal(gold: Node, said: Node) -> bool:
    return _same_multiset(_expand(gold), _expand(said))


def _same_multiset(gold: Sequence[Node], said: Sequence[Node]) -> bool:
    if len(gold) != len(said) or len(gold) > MAX_ITEMS:
        return False
    rest = list(said)
    for item in gold:
        for i, other in enumerate(rest):
            if equal(item, other):
                del rest[i]
                break
        else:
            return False
    return True


def _sequences(gold: Node, said: Node) -> bool:
    if gold[0] != "seq" or said[0] != "seq":
        whole, single = (gold, said) if gold[0] == "seq" else (said, gold)
        return whole[1] == "{" and len(whole) == 4 and equal(whole[3], single)
    opened = {"<": "(", "langle": "("}
    left, right = (opened.get(gold[1], gold[1]), gold[2]), (opened.get(said[1], said[1]), said[2])
    right = (right[0], ")") if right[1] in ("rangle", ">") else right
    left = (left[0], ")") if left[1] in ("rangle", ">") else left
    a, b = gold[3:], said[3:]
    if len(a) != len(b):
        return False
    if all(_assigned(item) for item in (*a, *b)):
        return _same_multiset(a, b)
    if all(map(_assigned, a)) != all(map(_assigned, b)) and "(" in (left[0], right[0]):  # "y = 2 and x = 1" is (1, 2)
        a, b = (tuple(sorted(items, key=_assigned)) if all(map(_assigned, items)) else items for items in (a, b))
    if left[0] in ("", "{") and right[0] in ("", "{"):
        return _same_multiset(a, b)
    if left != right and "" not in (left[0], right[0]):
        return False
    if "{" in (left[0], right[0]):
        return False
    return all(equal(x, y) for x, y in zip(a, b, strict=True))


def _assigned(node: Node) -> str:
    """The name that "x = ..." or "f(x) = ..." gives a value to, else ""."""
    if node[0] != "rel" or len(node) != 4 or node[2] != "=":
        return ""
    names = _name(node[1])
    return names if names and not (set(names.split()) & symbols(node[3]) and len(names.split()) == 1) else ""


def _name(node: Node) -> str:
    if node[0] == "sym":
        return node[1]
    if node[0] == "mul":
        if node[2][0] == "num" and node[1][0] == "sym":
            return f"{node[1][1]}({node[2][1]})"  # "f(2) = ..."
        left, right = _name(node[1]), _name(node[2])
        return f"{left} {right}" if left and right else ""
    return ""


def _relations(gold: Node, said: Node) -> bool:
    gold, said = _plain_relation(gold), _plain_relation(said)
    if gold[0] == "rel" and said[0] == "rel":
        name_a, name_b = _assigned(gold), _assigned(said)
        if name_a and name_b and (name_a == name_b or (not symbols(gold[3]) and not symbols(said[3]))):
            return name_a == name_b and equal(gold[3], said[3])
        if _is_set(gold) and _is_set(said):
            return _same_pieces(gold, said)
        return _proportional(gold, said)
    if gold[0] != "rel" and said[0] != "rel":
        return equal(gold, said)
    relation, other, from_said = (gold, said, False) if gold[0] == "rel" else (said, gold, True)
    if _is_set(relation) and other[0] in ("seq", "cup", "minus", "cap") and _is_set(other):
        return _same_pieces(relation, other)
    if _assigned(relation):
        return equal(relation[3], other)
    if "~" in relation[2::2]:
        sides = relation[1::2]
        near = all(_near(sides[0], side) for side in sides[1:])
        return near and any(equal(*((other, side) if from_said else (side, other))) for side in sides)
    if set(relation[2::2]) == {"="} and from_said:
        sides = list(relation[1::2])
        sides = sides[1:] if _name(sides[0]) else sides
        return all(same_value(sides[0], side) for side in sides[1:]) and equal(other, sides[-1])
    return False


def _near(a: Node, b: Node) -> bool:
    if _name(a) and symbols(a):
        return True
    x, y = numeric(a, {}), numeric(b, {})
    return abs(x - y) <= 0.02 * max(abs(x), abs(y))


def _plain_relation(node: Node) -> Node:
    """ "x in S" is S; "(x, y) = (1, 2)" is (1, 2)."""
    if node[0] != "rel" or len(node) != 4:
        return node
    names = node[1][0] == "seq" and all(item[0] == "sym" for item in node[1][3:])
    return node[3] if node[2] == "in" or (node[2] == "=" and names) else node


def _proportional(gold: Node, said: Node) -> bool:
    """Two equations (or inequalities) whose sides differ by the same factor, positive for inequalities, say the same."""
    if len(gold) != 4 or len(said) != 4:
        return False
    for turned in (said, ("rel", said[3], FLIP.get(said[2], said[2]), said[1])):
        if gold[2] == turned[2] and symbols(gold) == symbols(turned) and symbols(gold):
            ratios = list(_ratios(("add", gold[1], ("neg", gold[3])), ("add", turned[1], ("neg", turned[3]))))
            same = len(ratios) >= 2 and all(close(ratio, ratios[0]) for ratio in ratios)
            if same and (gold[2] in ("=", "!=") or context().re(ratios[0]) > 0):
                return True
    return False


def _ratios(a: Node, b: Node) -> Iterable[object]:
    names = sorted(symbols(a) | symbols(b))
    for shift in range(len(POINTS)):
        point = {name: POINTS[(shift + i) % len(POINTS)] + Fraction(7 * i, 13) for i, name in enumerate(names)}
        left, right = numeric(a, point), numeric(b, point)
        if right == 0 or left == 0:
            continue
        yield left / right


def _matrices(gold: Node, said: Node) -> bool:
    gold, said = _rows(gold), _rows(said)
    if gold[0] != said[0]:
        a, b = _vector(gold), _vector(said)
        return a is not None and b is not None and len(a) == len(b) and all(map(equal, a, b))
    if [len(row) for row in gold[1:]] != [len(row) for row in said[1:]]:
        return False
    return all(equal(x, y) for a, b in zip(gold[1:], said[1:], strict=True) for x, y in zip(a, b, strict=True))


def _rows(node: Node) -> Node:
    """A list of lists is a matrix."""
    if node[0] == "seq" and len(node) > 3 and all(row[0] == "seq" and row[1:3] in (("[", "]"), ("(", ")")) for row in node[3:]):
        return ("matrix", *(tuple(row[3:]) for row in node[3:]))
    return node


def _vector(node: Node) -> tuple[Node, ...] | None:
    """The entries of a tuple, a row or a column."""
    if node[0] == "seq":
        return node[3:] if node[1] in ("(", "langle", "<", "[") else None
    if node[0] == "matrix" and len(node) == 2:
        return node[1]
    return tuple(row[0] for row in node[1:]) if node[0] == "matrix" and all(len(row) == 1 for row in node[1:]) else None


def _is_set(node: Node) -> bool:
    from vlrl_rewards.mathsets import is_real_set

    return is_real_set(node)


def _same_pieces(gold: Node, said: Node) -> bool:
    from vlrl_rewards.mathsets import pieces

    a, b = pieces(gold), pieces(said)
    if a is None or b is None or len(a) != len(b):
        return False
    return all(
        x.low_closed == y.low_closed and x.high_closed == y.high_closed and equal(x.low, y.low) and equal(x.high, y.high)
        for x, y in zip(a, b, strict=True)
    )


__all__ = ["NoValue", "TooBig", "equal", "literal", "rounded"]
