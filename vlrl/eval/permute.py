"""The same question with its options in another order."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

from vlrl.eval.scorer import Fields
from vlrl.eval.suite import Suite
from vlrl.registry import ConfigError

_LABEL = re.compile(r"^\s*[\(\[]?([A-Z])[\.\):\]]\s*")


def _bare(choice: str) -> tuple[str, str]:
    """("A. ", "lamp") of "A. lamp"; ("", choice) of an option without a label."""
    match = _LABEL.match(choice)
    return (match.group(0), choice[match.end() :]) if match else ("", choice)


def rotated(suite: Suite, row: Fields, shift: int = 1) -> dict[str, Any]:
    """The row with its options moved on by `shift` places and its gold letter with them; labels stay where they are.

    An open question comes back as it is. Raises ConfigError where options or gold answer are not plain fields of the row.
    """
    choices = suite.options(row)
    if len(choices) < 2:
        return dict(row)
    field, answer = _field(suite.choices, row), _field(suite.answer, row)
    if field is None or answer is None or not isinstance(row[field], (list, tuple)):
        raise ConfigError(f"suite {suite.name!r}: options cannot be permuted, because `choices` and `answer` are not plain fields of its rows")
    count = len(choices)
    order = [(place - shift) % count for place in range(count)]  # the option now at `place` was at order[place]
    parts = [_bare(str(choice)) for choice in row[field]]
    moved = [parts[place][0] + parts[old][1] for place, old in enumerate(order)]
    changes: dict[str, Any] = {field: moved}
    gold = str(row[answer]).strip()
    letter = gold.strip("()")
    if len(letter) == 1 and letter in string.ascii_uppercase[:count] and gold not in [str(choice) for choice in choices]:
        changes[answer] = gold.replace(letter, string.ascii_uppercase[order.index(string.ascii_uppercase.index(letter))])
    for name, value in row.items():  # a prompt that the hub wrote out holds the options too
        if isinstance(value, str) and name not in (field, answer) and value.count("\n") and all(str(c) in value for c in row[field]):
            changes[name] = _rewritten(value, [str(choice) for choice in row[field]], moved)
    return {**row, **changes}


def _rewritten(text: str, old: list[str], new: list[str]) -> str:
    """The text with its trailing lines of options replaced."""
    lines = text.split("\n")
    place = 0
    for number, line in enumerate(lines):
        if place < len(old) and line.endswith(old[place]) and len(line) <= len(old[place]) + 5:
            lines[number] = line[: len(line) - len(old[place])] + new[place]
            place += 1
    return "\n".join(lines) if place == len(old) else text


def _field(expression: str, row: Mapping[str, Any]) -> str | None:
    """The field that an expression like `row.answer` names; None for anything more."""
    match = re.fullmatch(r"\s*row\.(\w+)\s*", expression)
    return match.group(1) if match and match.group(1) in row else None
