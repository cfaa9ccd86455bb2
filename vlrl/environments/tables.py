"""Tools that a row defines: functions that look a key up in a table, so that thousands of small tool
environments run offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vlrl.environments.tools import Tool, ToolEnvironment, ToolEpisode
from vlrl.plugins.episodes import Episode, Observation, copied
from vlrl.plugins.registry import register
from vlrl.types import Row, RowError


class TablesEpisode(ToolEpisode):
    """The functions of one row. `unsolved` are the (function, value) pairs of `row.meta["goals"]` that no
    call has returned yet."""

    def __init__(self) -> None:
        super().__init__([])
        self.unsolved: list[tuple[str, str]] = []

    def reset(self, row: Row, seed: int) -> Observation:
        functions = row.meta.get("functions")
        if not isinstance(functions, (list, tuple)) or not functions:
            raise RowError(
                f"row {row.id!r}: environment 'tables' needs meta['functions'], a list of {{name, "
                f"description, argument, table}}"
            )
        self.tools = {function["name"]: look_up(function) for function in functions}
        self.unsolved = [(str(name), str(value)) for name, value in row.meta.get("goals", ())]
        lines = [f"- {f['name']}({f['argument']}): {f['description']}" for f in functions]
        return Observation("Functions:\n" + "\n".join(lines))

    def copy(self) -> Episode:
        return copied(self, "unsolved")

    def called(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        answer = super().called(name, arguments)
        solved = (name, answer.text) in self.unsolved and not answer.invalid
        if solved:
            self.unsolved.remove((name, answer.text))
        return replace(answer, parts={"calls": 1.0, "solved": float(solved)})


def look_up(function: Mapping[str, Any]) -> Tool:
    """The tool that returns what a table says of a key; an unknown key is a LookupError, which the policy is
    told."""
    table = {str(key): str(value) for key, value in function["table"].items()}

    def call(**arguments: str) -> str:
        key = arguments[function["argument"]]
        if key not in table:
            raise LookupError(f"{function['name']} knows no {function['argument']} {key[:40]!r}")
        return table[key]

    schema = {
        "type": "object",
        "properties": {function["argument"]: {"type": "string"}},
        "required": [function["argument"]],
    }
    return Tool(function["name"], function["description"], schema, call)


@register("tables")
@dataclass(frozen=True)
class Tables(ToolEnvironment):
    """Row-defined tools: each of `row.meta["functions"]` ({name, description, argument, table}) answers a
    call with its table's value for the key.

    The functions are told in the opening observation. `row.meta["goals"]` lists the (function, value) pairs
    that a solution has to look up; the named parts of a turn's reward are "calls" (1 for a call that reached
    a function) and "solved" (1 where it returned a value of the goals for the first time). No reward is
    stated. Paper: Ye et al. 2025, arXiv:2508.08791, sec. 3 (tool environments as local functions over
    documents, so that training needs no online tools). Edge: a row without functions raises RowError.
    """

    def episode(self) -> ToolEpisode:
        return TablesEpisode()
