"""Rows that diagnostic probes take apart: problems with a plan, knowledge and subproblems; codes of a
hierarchy with the path that leads to them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer

UNITS = {"pairs": 2, "dozens": 12, "scores": 20}
NAMES = ("Anna", "Ben", "Cleo", "Dan")
LEVELS = (
    ("skin", "bone", "heart", "lung", "eye"),
    ("pain", "rash", "break", "cough", "swelling"),
    ("acute", "chronic", "mild", "severe", "healed"),
    ("left", "right", "upper", "lower", "inner"),
)


@register("gen_planned")
@dataclass(frozen=True, kw_only=True)
class GenPlanned(GeneratedSource):
    """Word problems of one to `most` steps, with what SPARKLE's probes need of a row: `meta.plan`,
    `meta.knowledge` (how many a pair, a dozen, a score is), `meta.subproblems` ({"question", "answer"}, the
    last one the problem) and `meta.level`, the number of steps.

    Paper: SPARKLE, arXiv:2506.04723 (there written by a language model for benchmarks). Held out is a fixed
    fifth of the problems, by the hash of their text. Reward: `numeric`.
    """

    most: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.most <= 3:
            raise ConfigError(f"most: {self.most} steps; give 1 to 3")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        while True:
            story, steps, plan, unit = self.problem(rng)
            question = f"{story} {steps[-1][0]}"
            if (random.Random(f"planned split {question}").random() < 0.2) == (self.split == "heldout"):
                break
        worked = " ".join(f"{text} {value}." for text, value in steps)
        meta: dict[str, Any] = {
            "plan": "\n".join(f"{place}. {text}" for place, text in enumerate(plan, 1)),
            "knowledge": f"One of the {unit} is {UNITS[unit]} pens.",
            "subproblems": [
                {"question": f"{story} {text}" if place == 0 else text, "answer": str(value)}
                for place, (text, value) in enumerate(steps)
            ],
            "level": len(steps),
        }
        answer = str(steps[-1][1])
        target = f"<think>{worked}</think>{tagged_answer(answer)}"
        return Row(self.id(index), question, answer, task="planned", target=target, meta=meta)

    def problem(self, rng: random.Random) -> tuple[str, list[tuple[str, int]], list[str], str]:
        """The story, its questions with their answers in order, the plan, and the unit that one must know."""
        name, unit = rng.choice(NAMES), rng.choice(tuple(UNITS))
        count, more, boxes = rng.randint(2, 9), rng.randint(1, 9), rng.randint(2, 4)
        length = rng.randint(1, self.most)
        story = f"{name} has {count} {unit} of pens."
        value = count * UNITS[unit]
        steps = [("How many pens are that?", value)]
        plan = [f"Turn the {unit} into pens."]
        if length > 1:
            story += f" {name} buys {more} more pens."
            value += more
            steps.append((f"How many pens does {name} have then?", value))
            plan.append("Add the pens that are bought.")
        if length > 2:
            story += f" {name}'s school has {boxes} times as many."
            steps.append(("How many pens does the school have?", value * boxes))
            plan.append("Multiply by the factor of the school.")
        return story, steps, plan, unit


@register("gen_hierarchy")
@dataclass(frozen=True, kw_only=True)
class GenHierarchy(GeneratedSource):
    """Codes of an invented hierarchy: "What is code 41.20?" -> "right acute swelling of the heart", one digit
    a level, 2 to 4 levels deep.

    `meta.path` holds the names from the root to the answer, `meta.statement` the fact as a statement,
    `meta.level` the depth. Paper: HierTraversal, arXiv:2511.05933 (there medical codes of MedConceptsQA and
    patents). Held out is a fixed fifth of the codes, by their hash. Reward: `text`.
    """

    deepest: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.deepest <= len(LEVELS):
            raise ConfigError(f"deepest: {self.deepest} levels; give 2 to {len(LEVELS)}")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        while True:
            digits = [rng.randrange(5) for _ in range(rng.randint(2, self.deepest))]
            code = "".join(map(str, digits[:2])) + "." + "".join(map(str, digits[2:]))
            if (random.Random(f"hierarchy split {code}").random() < 0.2) == (self.split == "heldout"):
                break
        path = [name_of(digits[:depth]) for depth in range(1, len(digits) + 1)]
        code = code.removesuffix(".")
        steps = "".join(f"{''.join(map(str, digits[: i + 1]))}: {name}; " for i, name in enumerate(path))
        return Row(
            self.id(index),
            f"What is code {code}?",
            path[-1],
            task="hierarchy",
            target=f"<think>{steps}</think>{tagged_answer(path[-1])}",
            meta={"path": path, "statement": f"Code {code} is {path[-1]}.", "level": len(path)},
        )


def name_of(digits: list[int]) -> str:
    """The name of a node: "heart", "pain of the heart", "acute pain of the heart", ..."""
    names = [LEVELS[level][digit] for level, digit in enumerate(digits)]
    return " of the ".join([" ".join(names[:0:-1]), names[0]]) if len(names) > 1 else names[0]
