"""Questions that need tools: facts that stand only in the tables of the row's own functions."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer

PEOPLE = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gwen", "Hal", "Iris", "Jon", "Kim", "Leo")
TOWNS = ("Arlen", "Brook", "Corby", "Dunham", "Elton", "Fenby", "Grove", "Holt", "Irby", "Kelso")


def tool_call(name: str, **arguments: str) -> str:
    """A call as the policy writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@register("gen_row_tools")
@dataclass(frozen=True, kw_only=True)
class GenRowTools(GeneratedSource):
    """Questions over `hops` lookups, with the functions that answer them; of 2 people the numbers are added.

    One hop: how many sheep a person has. Two hops: the toll of the town in which a person lives. With
    `people` 2 the answer is the sum of both. `meta["functions"]` has the functions with their tables of
    `entries` keys, of which the last one is not needed, `meta["goals"]` the (function, value) pairs of a
    solution, `meta["turns"]` the turns of a demonstration. Every row has tables of its own, so that no answer
    can be learned by heart. Paper: Ye et al. 2025, arXiv:2508.08791, sec. 3: scenarios of parallel and serial
    sub-questions, each with a function.
    """

    hops: int = 2
    people: int = 1
    entries: int = 6
    task: str = "lookup"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hops not in (1, 2) or self.people not in (1, 2) or not 2 <= self.entries <= len(TOWNS):
            raise ConfigError(
                f"hops={self.hops}, people={self.people} must be 1 or 2, and entries={self.entries} from 2 "
                f"to {len(TOWNS)}"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        asked, functions = rng.sample(PEOPLE[: self.entries], self.people), self.functions(rng)
        goals, turns, values = [], [], []
        for person in asked:
            key = person
            for function in functions[: self.hops]:
                turns.append(tool_call(function["name"], **{function["argument"]: key}))
                key = function["table"][key]
                goals.append((function["name"], key))
            values.append(int(key))
        if self.people == 2:
            turns.append(tool_call("calculator", expression="+".join(map(str, values))))
        turns.append(tagged_answer(str(sum(values))))
        what = "the toll of the town of {}" if self.hops == 2 else "the number of sheep of {}"
        question = " plus ".join(what.format(person) for person in asked)
        meta = {"functions": functions, "goals": goals, "turns": turns}
        return Row(
            self.id(index),
            f"What is {question}?",
            sum(values),
            task="lookup",
            target="".join(turns),
            meta=meta,
        )

    def functions(self, rng: random.Random) -> list[dict[str, Any]]:
        """The functions of a row: those of a solution in their order, then one that is not needed."""
        people, towns = PEOPLE[: self.entries], rng.sample(TOWNS, self.entries)
        sheep = dict(zip(people, map(str, rng.sample(range(2, 61), self.entries))))
        lives = dict(zip(people, rng.sample(towns, len(towns))))
        toll = dict(zip(towns, map(str, rng.sample(range(2, 61), self.entries))))
        known = {
            "sheep_of": ("person", "the number of sheep of a person", sheep),
            "town_of": ("person", "the town in which a person lives", lives),
            "toll_of": ("town", "the toll of a town", toll),
        }
        order = ("town_of", "toll_of", "sheep_of") if self.hops == 2 else ("sheep_of", "town_of")
        return [
            {"name": name, "argument": known[name][0], "description": known[name][1], "table": known[name][2]}
            for name in order
        ]
