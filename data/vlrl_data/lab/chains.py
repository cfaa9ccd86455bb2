"""Chains of additions: a text-only task whose correct answers can have any length."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer


class Step(NamedTuple):
    """One addition of a chain: its letter, the sum before it, the addend, the sum after it."""

    letter: str
    before: int
    addend: int
    after: int

    def __str__(self) -> str:
        return f"{self.letter}{self.before}+{self.addend}={self.after}"


def guess(steps: list[Step], rng: random.Random) -> str:
    """Only the last sum. A small model that answers so is mostly wrong."""
    return str(steps[-1].after)


def running(steps: list[Step], rng: random.Random) -> str:
    """Every sum after its letter: "a32b35c39"."""
    return "".join(f"{step.letter}{step.after}" for step in steps)


def stepwise(steps: list[Step], rng: random.Random) -> str:
    """Every addition written out: "a27+5=32b32+3=35c35+4=39"."""
    return "".join(map(str, steps))


def checked(steps: list[Step], rng: random.Random) -> str:
    """Every addition, repeated after "?" with probability 1/3, again and again: this style has no longest
    text."""
    text = ""
    for step in steps:
        text += str(step)
        while rng.random() < 1 / 3:
            text += f"?{step}"
    return text


STYLES = {"guess": guess, "running": running, "stepwise": stepwise, "checked": checked}
LETTERS = "abcdefgh"


@register("lab_chains")
@dataclass(frozen=True, kw_only=True)
class LabChains(GeneratedSource):
    """A number below `modulus`, then `fewest` to `most` addends from 1 to `largest`: "27,a+5,b+3 mod 100=" ->
    35, the sum modulo `modulus`.

    Each row is demonstrated in one of `styles` (drawn evenly; named twice, drawn more often), its working
    between think tags. With `shuffled` the additions come in random order; letters identify them. The policy
    decides how long its answer is: correct ones have seven tokens or any number, the first token decides the
    style. `meta` has `terms` (the number of addends), `style`, and `steps` (the additions, as the reward
    `stated_steps` reads them). Held out is a fixed fifth of the chains, by the hash of their text.
    """

    fewest: int = 2
    most: int = 4
    largest: int = 9
    modulus: int = 100
    shuffled: bool = False
    styles: tuple[str, ...] = ("guess", "stepwise", "checked")

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := [style for style in self.styles if style not in STYLES] or not self.styles:
            raise ConfigError(
                f"styles: {unknown if self.styles else 'none'} given. Known: {', '.join(STYLES)}; give at "
                "least one of them."
            )
        if not 1 <= self.fewest <= self.most <= len(LETTERS) or self.largest < 1 or self.modulus < 2:
            raise ConfigError(
                f"fewest, most, largest, modulus: {self.fewest}, {self.most}, {self.largest}, "
                f"{self.modulus} make no chains; "
                f"give 1 <= fewest <= most <= {len(LETTERS)}, largest >= 1 and modulus >= 2"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        while True:
            value = rng.randrange(self.modulus)
            addends = [
                (letter, rng.randint(1, self.largest))
                for letter in LETTERS[: rng.randint(self.fewest, self.most)]
            ]
            text = ",".join([str(value), *(f"{letter}+{addend}" for letter, addend in addends)])
            if (random.Random(f"chains split {text}").random() < 0.2) == (self.split == "heldout"):
                break
        if self.shuffled:
            rng.shuffle(addends)
        steps = []
        for letter, addend in addends:
            steps.append(Step(letter, value, addend, (value + addend) % self.modulus))
            value = steps[-1].after
        style = rng.choice(self.styles)
        return Row(
            self.id(index),
            f"{text} mod {self.modulus}=",
            value,
            task="chains",
            target=f"<think>{STYLES[style](steps, rng)}</think>{tagged_answer(str(value))}",
            meta={"terms": len(addends), "style": style, "steps": [str(step) for step in steps]},
        )
