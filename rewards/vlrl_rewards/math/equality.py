"""Equality of two mathematics trees: numbers, functions, lists, sets, tuples, intervals, equations, matrices.

Rational values are compared exactly; other numbers and functions by their values at fixed points.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

from vlrl_rewards.math.families import exact_values, same_families, same_parameter, scaled, vector
from vlrl_rewards.math.lexer import SERIES, Node, NotMath, written
from vlrl_rewards.math.sets import is_real_set, pieces
from vlrl_rewards.math.value import DIGITS, POINTS, NoValue, close, context, exact, numeric, symbols

ENOUGH_DIGITS = (
    6  # significant digits from which on a decimal may stand for a value that cannot be written out
)
FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
MAX_ITEMS = 64
OTHERWISE: Node = ("text", "otherwise")
REALS: Node = ("seq", "(", ")", ("neg", ("const", "inf")), ("const", "inf"))


def equal(gold: Node, said: Node) -> bool:
    """Whether `said` equals `gold`. Raises TooBig where a value is beyond the bounds, NoValue where equality
    cannot be determined."""
    families = same_families(gold, said, _expand)
    if families is not None:
        return families
    said = same_parameter(gold, said)
    gold, said = _without_abs(_without_domain(gold)), _without_abs(_without_domain(said))
    if gold == said:
        return True
    if "cases" in (gold[0], said[0]) and "rel" not in (gold[0], said[0]):
        return gold[0] == said[0] and _cases(gold[1:], said[1:])
    gold, said = scaled(gold), scaled(said)
    if "cong" in (gold[0], said[0]):
        return _residue(gold) == _residue(said) is not None
    if _has(gold, "pm") or _has(said, "pm"):
        return _pm_equal(gold, said)
    if gold[0] == "rel" or said[0] == "rel":
        return _relations(gold, said)
    if is_real_set(gold) and is_real_set(said):
        return _same_pieces(gold, said)
    if gold[0] == "matrix" or said[0] == "matrix":
        return _matrices(gold, said)
    if gold[0] == "seq" or said[0] == "seq":
        return _sequences(gold, said)
    if "text" in (gold[0], said[0]) or gold[0] == "base" or said[0] == "base":
        both = gold[0] == said[0]
        return not both and _digits(gold) is not None and _digits(gold) == _digits(said)
    return _numbers(gold, said)


def _residue(node: Node) -> tuple[int, int] | None:
    """(residue, modulus) of a residue class, or of "10 mod 7"; None for any other tree."""
    if node[0] == "cong":
        return node[1], node[2]
    if node[:2] == ("fn", "mod") and len(node) == 4:
        value, modulus = exact(node[2]), exact(node[3])
        if (
            value is not None
            and modulus is not None
            and value.denominator == modulus.denominator == 1
            and modulus > 0
        ):
            return int(value % modulus), int(modulus)
    return None


def _without_domain(node: Node) -> Node:
    """The tree without a trailing domain: "2n + 1" of "2n + 1, n in Z"."""
    if node[0] == "seq" and node[1] == "" and len(node) > 4 and node[-1][0] == "rel" and node[-1][2] == "in":
        return node[3] if len(node) == 5 else node[:-1]
    return node


def _without_abs(node: Node) -> Node:
    """The relation without an absolute value: "|x| < a" is -a < x < a; "|x| > a" is x < -a or x > a."""
    if (
        node[0] != "rel"
        or len(node) != 4
        or node[1][:2] != ("fn", "abs")
        or node[1][2][0] != "sym"
        or node[2] not in FLIP
    ):
        return node
    symbol, op, bound = node[1][2], node[2], node[3]
    if op in ("<", "<="):
        return ("rel", ("neg", bound), op, symbol, op, bound)
    outside = ("seq", "", "", ("rel", symbol, FLIP[op], ("neg", bound)), ("rel", symbol, op, bound))
    return outside if op in (">", ">=") else node


def _digits(node: Node) -> str | None:
    """The digits of a number in a base; None if they are not valid in that base. A number without a base
    matches any base."""
    if node[0] == "base":
        return (
            node[1]
            if 2 <= node[2] <= 36 and all(int(digit) < node[2] for digit in node[1] if digit.isdigit())
            else None
        )
    try:
        return written(node[1]) if node[0] == "num" else None
    except NotMath:
        return None


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
    return node[0] in (kind, "mp" if kind == "pm" else kind) or any(
        _has(child, kind) for child in node[1:] if isinstance(child, tuple) and child
    )


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


def _explicit(rows: Node) -> Node:
    """The cases with "otherwise" as the real numbers of no other condition."""
    named = [condition for _, condition in rows if condition != OTHERWISE]
    if not named or len(named) == len(rows):
        return rows
    others = reduce(lambda a, b: ("cup", a, b), named)
    return tuple((value, ("minus", REALS, others) if when == OTHERWISE else when) for value, when in rows)


def _cases(gold: Node, said: Node) -> bool:
    """Whether two lists of (value, condition) have the same members, in any order."""
    if any(row[1] == OTHERWISE for row in gold) != any(row[1] == OTHERWISE for row in said):
        gold, said = _explicit(gold), _explicit(said)
    rest = list(said) if len(gold) == len(said) <= MAX_ITEMS else []
    for value, condition in gold:
        match = next(
            (i for i, (other, when) in enumerate(rest) if equal(condition, when) and equal(value, other)),
            None,
        )
        if match is None:
            return False
        del rest[match]
    return True


def _same_multiset(gold: Sequence[Node], said: Sequence[Node]) -> bool:
    if len(gold) != len(said):
        return False
    mine, theirs = (exact_values(list(items)) for items in (gold, said))
    if mine is not None and mine == theirs:
        return True
    if len(gold) > MAX_ITEMS:
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
        if whole[1] in ("(", "<", "langle") and _in_unit_vectors(whole[3:], single):
            return True
        return whole[1] == "{" and len(whole) == 4 and equal(whole[3], single)
    opened = {"<": "(", "langle": "("}
    left, right = (opened.get(gold[1], gold[1]), gold[2]), (opened.get(said[1], said[1]), said[2])
    right = (right[0], ")") if right[1] in ("rangle", ">") else right
    left = (left[0], ")") if left[1] in ("rangle", ">") else left
    a, b = gold[3:], said[3:]
    if len(a) != len(b):
        return False
    if all(_assigned(item) for item in (*a, *b)):
        return _same_multiset(_unindexed(a, b), _unindexed(b, a))
    if all(map(_assigned, a)) != all(map(_assigned, b)) and "(" in (
        left[0],
        right[0],
    ):  # "y = 2 and x = 1" is (1, 2)
        a, b = _by_name(a), _by_name(b)
    if left[0] in ("", "{") and right[0] in ("", "{"):
        return _same_multiset(a, b)
    if left != right and "" not in (left[0], right[0]):
        return False
    if "{" in (left[0], right[0]):
        return False
    return all(equal(x, y) for x, y in zip(a, b, strict=True))


def _unindexed(items: Node, others: Node) -> Node:
    """x = 2, x = 3 of "x_1 = 2, x_2 = 3" where the other side names x alone; else unchanged."""
    names = {_assigned(item).partition("_")[0] for item in items}
    if len(names) > 1 or {_assigned(other) for other in others} != names:
        return items
    return tuple(("rel", ("sym", *names), *item[2:]) for item in items)


def _by_name(items: Node) -> Node:
    """Assignments in the order of their names; other items unchanged."""
    return tuple(sorted(items, key=_assigned)) if all(map(_assigned, items)) else items


def _assigned(node: Node) -> str:
    """The name that "x = ..." or "f(x) = ..." assigns to; "" for anything else."""
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
        if is_real_set(gold) and is_real_set(said):
            return _same_pieces(gold, said)
        if "cases" in (gold[-1][0], said[-1][0]):
            return (
                len(gold) == len(said) == 4
                and gold[2] == said[2] == "="
                and equal(gold[1], said[1])
                and equal(gold[3], said[3])
            )
        return _proportional(gold, said)
    if gold[0] != "rel" and said[0] != "rel":
        return equal(gold, said)
    relation, other, from_said = (gold, said, False) if gold[0] == "rel" else (said, gold, True)
    if is_real_set(relation) and other[0] in ("seq", "cup", "minus", "cap") and is_real_set(other):
        return _same_pieces(relation, other)
    if _assigned(relation) or (len(relation) == 4 and relation[2] == "=" and relation[3][0] == "cases"):
        return equal(relation[3], other)
    if "~" in relation[2::2]:
        sides = relation[1::2]
        near = all(_near(sides[0], side) for side in sides[1:])
        return near and any(equal(*((other, side) if from_said else (side, other))) for side in sides)
    if set(relation[2::2]) == {"="} and from_said:
        values = relation[3::2] if _name(relation[1]) else relation[1::2]
        return all(same_value(values[0], value) for value in values[1:]) and equal(other, values[-1])
    return False


def _near(a: Node, b: Node) -> bool:
    if _name(a) and symbols(a):
        return True
    x, y = numeric(a, {}), numeric(b, {})
    return abs(x - y) <= 0.02 * max(abs(x), abs(y))


def _plain_relation(node: Node) -> Node:
    """The set or tuple that a relation states: S of "x in S", (1, 2) of "(x, y) = (1, 2)"."""
    if node[0] != "rel" or len(node) != 4:
        return node
    names = node[1][0] == "seq" and all(item[0] == "sym" for item in node[1][3:])
    return node[3] if node[2] == "in" or (node[2] == "=" and names) else node


def _proportional(gold: Node, said: Node) -> bool:
    """Whether two equations or inequalities differ by a constant factor, which must be positive for
    inequalities."""
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
        point = {
            name: POINTS[(shift + i) % len(POINTS)] + Fraction(7 * i, 13) for i, name in enumerate(names)
        }
        left, right = numeric(a, point), numeric(b, point)
        if right == 0 or left == 0:
            continue
        yield left / right


def _matrices(gold: Node, said: Node) -> bool:
    gold, said = _rows(gold), _rows(said)
    if gold[0] != said[0]:
        a, b = _vector(gold), _vector(said)
        if (a is None) != (b is None):
            return _in_unit_vectors(a or b or (), said if b is None else gold)
        return a is not None and b is not None and len(a) == len(b) and all(map(equal, a, b))
    if [len(row) for row in gold[1:]] != [len(row) for row in said[1:]]:
        return False
    return all(
        equal(x, y) for a, b in zip(gold[1:], said[1:], strict=True) for x, y in zip(a, b, strict=True)
    )


def _in_unit_vectors(entries: Sequence[Node], other: Node) -> bool:
    """Whether `other`, written with i, j and k, has the entries of a vector."""
    values = vector(other, len(entries))
    return values is not None and all(
        close(numeric(entry, {}), value) for entry, value in zip(entries, values, strict=True)
    )


def _rows(node: Node) -> Node:
    """A list of lists as a matrix; any other tree unchanged."""
    if (
        node[0] == "seq"
        and len(node) > 3
        and all(row[0] == "seq" and row[1:3] in (("[", "]"), ("(", ")")) for row in node[3:])
    ):
        return ("matrix", *(tuple(row[3:]) for row in node[3:]))
    return node


def _vector(node: Node) -> tuple[Node, ...] | None:
    """The entries of a tuple, a row or a column; None for any other tree."""
    if node[0] == "seq":
        return node[3:] if node[1] in ("(", "langle", "<", "[") else None
    if node[0] == "matrix" and len(node) == 2:
        return node[1]
    return (
        tuple(row[0] for row in node[1:])
        if node[0] == "matrix" and all(len(row) == 1 for row in node[1:])
        else None
    )


def _same_pieces(gold: Node, said: Node) -> bool:
    a, b = pieces(gold), pieces(said)
    if a is None or b is None or len(a) != len(b):
        return False
    return all(
        x.low_closed == y.low_closed
        and x.high_closed == y.high_closed
        and equal(x.low, y.low)
        and equal(x.high, y.high)
        for x, y in zip(a, b, strict=True)
    )


def same_value(a: Node, b: Node) -> bool | None:
    """Whether two trees are the same number, or the same function of their symbols; None if neither has a
    value. Raises TooBig, NoValue."""
    exact_a, exact_b = exact(a), exact(b)
    if exact_a is not None and exact_b is not None:
        return exact_a == exact_b
    names = sorted(symbols(a) | symbols(b))
    digits, whole = min(_working_digits(a), _working_digits(b)), _counting(a) | _counting(b)
    known = 0
    for shift in range(len(POINTS) + 2 if names else 1):
        point = {
            name: POINTS[(shift + 3 * i) % len(POINTS)] + Fraction(shift * (i + 1), 97)
            for i, name in enumerate(names)
        }
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


def _working_digits(node: Node) -> int:
    """Digits that the value is accurate to: fewer for quadrature, fewest for extrapolation (limits, infinite
    sums)."""
    own = {"int": 15, "lim": 10}.get(
        node[0], 10 if node[0] in SERIES and node[3] == ("const", "inf") else DIGITS - 15
    )
    return min([own, *(_working_digits(child) for child in node[1:] if isinstance(child, tuple) and child)])


def _counting(node: Node) -> set[str]:
    """Names in the bounds of a sum or product: they stand for integers."""
    if not isinstance(node, tuple) or not node:
        return set()
    own = symbols(node[2]) | symbols(node[3]) if node[0] in ("sum", "prod") else set()
    return own.union(*(_counting(child) for child in node[1:] if isinstance(child, tuple)))


def _tiny_difference(left: Any, right: Any, a: Node, b: Node, point: Mapping[str, Fraction]) -> bool:
    """Whether both are zero up to cancellation ("sin(pi)" against 0): the rounding error is absolute then."""
    return max(abs(left), abs(right)) < context().mpf(10) ** -(DIGITS - 12) and (
        exact(a) == 0 or exact(b) == 0
    )


def literal(node: Node) -> tuple[Fraction, int] | None:
    """(value, significant digits) of a signed decimal literal; None for any other tree."""
    sign = 1
    while node[0] == "neg":
        sign, node = -sign, node[1]
    if node[0] == "pct":
        node = ("num", node[1][1] / 100, node[1][2]) if node[1][0] == "num" else node
    return (sign * node[1], node[2]) if node[0] == "num" and node[2] else None


def rounded(short: Node, full: Node, enough: int = ENOUGH_DIGITS) -> bool:
    """Whether `short` is a decimal of at least `enough` significant digits to which `full`, which has no
    finite decimal form, rounds or truncates."""
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
