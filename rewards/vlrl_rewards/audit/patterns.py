"""Attack strings for regular expressions, made from the syntax tree of each: what it repeats, many times,
behind what it wants before and in front of what it does not want."""

from __future__ import annotations

import importlib
import pkgutil
import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import vlrl_rewards

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sre_constants as names
    import sre_parse

Tree = Sequence[tuple[Any, Any]]
_UNITS = (" ", "\n", "a", "1", "a ", "1 ", "1,", ".", "*", "not ", "(", "\\")
_ENDS = ("", "\x00", "!x.")
_LETTERS = " aA1.,-\n_éx(){}[]$*`'\":;/\\<>=+|&%#^~!?"
_IS = {
    names.CATEGORY_SPACE: str.isspace,
    names.CATEGORY_DIGIT: str.isdigit,
    names.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
}
_NOT = {
    names.CATEGORY_NOT_SPACE: names.CATEGORY_SPACE,
    names.CATEGORY_NOT_DIGIT: names.CATEGORY_DIGIT,
    names.CATEGORY_NOT_WORD: names.CATEGORY_WORD,
}
_REPEATS = (names.MAX_REPEAT, names.MIN_REPEAT)
_INSIDE: dict[Any, Callable[[Any], Sequence[Tree]]] = {
    **dict.fromkeys(_REPEATS, lambda value: [value[2]]),
    names.BRANCH: lambda value: value[1],
    names.SUBPATTERN: lambda value: [value[3]],
    **dict.fromkeys((names.ASSERT, names.ASSERT_NOT), lambda value: [value[1]]),
}
_MANY = 40  # repetitions from which on a part counts as unbounded


def compiled() -> dict[str, re.Pattern[str]]:
    """{"module.NAME": pattern} of every pattern that a module of the package keeps."""
    found: dict[str, re.Pattern[str]] = {}
    for module in pkgutil.walk_packages(vlrl_rewards.__path__, "vlrl_rewards."):
        for name, value in vars(importlib.import_module(module.name)).items():
            for number, pattern in enumerate(_patterns(value)):
                if isinstance(pattern.pattern, str) and pattern not in found.values():
                    found[f"{module.name[13:]}.{name}" + (f"[{number}]" if number else "")] = pattern
    return found


def _patterns(value: Any, depth: int = 0) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (list, tuple, dict)) and depth < 3:
        for part in value.values() if isinstance(value, dict) else value:
            yield from _patterns(part, depth + 1)


def attacks(pattern: re.Pattern[str], draw: random.Random, length: int) -> Iterator[str]:
    """Texts of about `length` characters: a few units of their own, and each part that the pattern repeats,
    behind a text that fits what stands before it."""
    parsed: Any = sre_parse.parse(pattern.pattern, pattern.flags)
    tree: Tree = list(parsed)
    pairs = [("", unit) for unit in _UNITS]
    for before, part in _repeated(tree, []):
        start, unit = _fitting(before, draw), _fitting(part, draw) or " "
        pairs += [(start, unit), (start, start + unit), ("", _fitting(tree, draw) or "a")]
    for start, unit in dict.fromkeys(pairs):
        yield start + unit * (length // len(unit)) + draw.choice(_ENDS)


def _repeated(tree: Tree, before: list[Any]) -> Iterator[tuple[Tree, Tree]]:
    """(what stands before it, the repeated part) of every part without a small bound."""
    before = list(before)
    for op, value in tree:
        if op in _REPEATS and (value[1] is names.MAXREPEAT or value[1] >= _MANY):
            yield list(before), value[2]
        for part in _INSIDE[op](value) if op in _INSIDE else ():
            yield from _repeated(part, before)
        before.append((op, value))


def _fitting(tree: Tree, draw: random.Random) -> str:
    """A text that a tree matches, assertions aside."""
    return "".join(_MADE[op](value, draw) for op, value in tree if op in _MADE)


def _again(value: Any, draw: random.Random) -> str:
    times = min(value[0] or draw.randint(0, 1), 5)
    return "".join(_fitting(value[2], draw) for _ in range(times))


def _member(members: Tree, draw: random.Random) -> str:
    """A character of a class."""
    inverted = members[0][0] is names.NEGATE
    if not inverted:
        op, value = draw.choice(list(members))
        if op is names.LITERAL:
            return chr(value)
        if op is names.RANGE:
            return chr(draw.randint(*value))
    fits = [char for char in _LETTERS if any(_has(op, value, char) for op, value in members) != inverted]
    return draw.choice(fits or ["a"])


def _has(op: Any, value: Any, char: str) -> bool:
    if op is names.LITERAL:
        return ord(char) == value
    if op is names.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if op is not names.CATEGORY:
        return False
    return bool(_IS[value](char) if value in _IS else not _IS[_NOT[value]](char))


_MADE: dict[Any, Callable[[Any, random.Random], str]] = {
    names.LITERAL: lambda value, draw: chr(value),
    names.NOT_LITERAL: lambda value, draw: "a" if value != ord("a") else "b",
    names.ANY: lambda value, draw: "a",
    names.IN: _member,
    names.BRANCH: lambda value, draw: _fitting(draw.choice(value[1]), draw),
    names.SUBPATTERN: lambda value, draw: _fitting(value[3], draw),
    **dict.fromkeys(_REPEATS, _again),
}
