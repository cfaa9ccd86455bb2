"""Text-only tasks: arithmetic, and knights and knaves."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass, replace
from typing import NamedTuple

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer

OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


@register("lab_arithmetic")
@dataclass(frozen=True, kw_only=True)
class LabArithmetic(GeneratedSource):
    """A sum of `terms` numbers from `smallest` to `largest`, with the given operations, from left to right;
    the answer is an int.

    Held-out sums are those whose text is hashed into a fixed fifth of all sums, so none of them is seen in
    training. `paraphrased` adds the same sum in other words as `meta["paraphrase"]`.
    """

    terms: int = 2
    largest: int = 9
    operations: tuple[str, ...] = ("+",)
    paraphrased: bool = False
    smallest: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for sign in self.operations:
            if sign not in OPERATIONS:
                raise ConfigError(f"operations: {sign!r} is unknown. Known: {', '.join(OPERATIONS)}.")
        if self.terms < 2 or self.largest < 1:
            raise ConfigError(f"terms, largest: {self.terms} and {self.largest} must be at least 2 and 1")
        if not 0 <= self.smallest <= self.largest:
            raise ConfigError(f"smallest: {self.smallest} is not between 0 and largest={self.largest}")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        while True:
            text, value = self._sum(rng)
            if (random.Random(f"arithmetic split {text}").random() < 0.2) == (self.split == "heldout"):
                break
        meta = {"paraphrase": f"what is {text}?"} if self.paraphrased else {}
        return Row(
            self.id(index), f"{text}=", value, task="arithmetic", target=tagged_answer(str(value)), meta=meta
        )

    def _sum(self, rng: random.Random) -> tuple[str, int]:
        value = rng.randint(self.smallest, self.largest)
        text = str(value)
        for _ in range(self.terms - 1):
            sign, number = rng.choice(self.operations), rng.randint(self.smallest, self.largest)
            text, value = (
                (f"({text})" if sign == "*" and self.terms > 2 else text) + f"{sign}{number}",
                OPERATIONS[sign](value, number),
            )
        return text, value


@register("lab_python")
@dataclass(frozen=True, kw_only=True)
class LabPython(LabArithmetic):
    """Sums (or products) of `lab_arithmetic` for environment `python`: a share `called` of the demonstrations
    (`meta["turns"]`) calls it, the others answer at once.

    For runs in which the policy learns where a call pays. `meta["known"]` is `known`: whether a policy can
    learn these sums by heart.
    """

    called: float = 0.5
    known: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.called <= 1:
            raise ConfigError(
                f"called: {self.called} is not between 0 and 1; it is the share of demonstrations that "
                "call Python"
            )

    def row(self, index: int) -> Row:
        row = super().row(index)
        program = f"print({row.question.removesuffix('=')})"
        call = json.dumps(
            {"arguments": {"code": program}, "name": "python"}, separators=(",", ":")
        )  # short, and the sum near the question
        calls = (
            [f"<think></think><tool_call>{call}</tool_call>"]
            if random.Random(f"call {row.id}").random() < self.called
            else []
        )
        return replace(
            row,
            task="python",
            meta=dict(row.meta)
            | {"known": int(self.known), "turns": [*calls, f"<think></think>{row.target}"]},
        )


class Claim(NamedTuple):
    """A claim of person `speaker` about `first` (and `second`); it is true if `holds(knights)`."""

    speaker: int
    text: str
    kind: str
    first: int
    second: int = -1

    def holds(self, knights: tuple[bool, ...]) -> bool:
        a, b = knights[self.first], knights[self.second] if self.second >= 0 else False
        return {"knight": a, "knave": not a, "same": a == b, "differ": a != b, "or": a or b, "and": a and b}[
            self.kind
        ]


TEXTS = {
    "knight": "{a} is a knight",
    "knave": "{a} is a knave",
    "same": "{a} and {b} are of the same kind",
    "differ": "{a} and {b} are of different kinds",
    "or": "{a} or {b} is a knight",
    "and": "{a} and {b} are knights",
}


def solutions(claims: list[Claim], people: int) -> list[tuple[bool, ...]]:
    """Every assignment (True: knight) in which exactly the knights' claims hold."""
    worlds = itertools.product((False, True), repeat=people)
    return [world for world in worlds if all(claim.holds(world) == world[claim.speaker] for claim in claims)]


@register("lab_knights")
@dataclass(frozen=True, kw_only=True)
class LabKnights(GeneratedSource):
    """Knights always tell the truth, knaves always lie; the answer names the knights, as "A C" or "none".
    Each puzzle has one solution.

    Paper: Xie et al. 2025, arXiv:2502.14768 (Logic-RL's training task). Harder with more `people` (2-8).
    """

    people: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.people <= 8:
            raise ConfigError(f"people: {self.people} is not between 2 and 8")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        while True:
            claims = [self._claim(rng, speaker) for speaker in range(self.people)]
            if len(found := solutions(claims, self.people)) == 1:
                break
        names = "ABCDEFGH"
        answer = " ".join(names[i] for i in range(self.people) if found[0][i]) or "none"
        statements = " ".join(f"{names[c.speaker]}: {c.text}." for c in claims)
        return Row(
            self.id(index),
            f"{statements} Who are knights?",
            answer,
            task="knights",
            target=tagged_answer(answer),
            meta={"people": self.people},
        )

    def _claim(self, rng: random.Random, speaker: int) -> Claim:
        others = [i for i in range(self.people) if i != speaker]
        kind = rng.choice(("knight", "knave", "same", "differ", "or", "and"))
        first = rng.choice(others)
        second = (
            rng.choice([i for i in range(self.people) if i != first])
            if kind not in ("knight", "knave")
            else -1
        )
        text = TEXTS[kind].format(a="ABCDEFGH"[first], b="ABCDEFGH"[second] if second >= 0 else "")
        return Claim(speaker, text, kind, first, second)
