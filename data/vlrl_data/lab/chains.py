"""A text-only task whose answers are long and of any length: sums of many small numbers, worked out in several styles."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from vlrl.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import Lab, demonstrate


class Step(NamedTuple):
    """One addition of a chain: its letter, the sum before it, what is added, the sum after it."""

    letter: str
    before: int
    addend: int
    after: int

    def __str__(self) -> str:
        return f"{self.letter}{self.before}+{self.addend}={self.after}"


def guess(steps: list[Step], rng: random.Random) -> str:
    """The last sum at once: one number between the tags, and mostly wrong from a small model."""
    return str(steps[-1].after)


def running(steps: list[Step], rng: random.Random) -> str:
    """Every sum after its letter: "a32b35c39"."""
    return "".join(f"{step.letter}{step.after}" for step in steps)


def stepwise(steps: list[Step], rng: random.Random) -> str:
    """Every addition written out: "a27+5=32b32+3=35c35+4=39"."""
    return "".join(map(str, steps))


def checked(steps: list[Step], rng: random.Random) -> str:
    """Every addition, said again after "?" a third of the time, and then perhaps once more: this style has no longest text."""
    said = ""
    for step in steps:
        said += str(step)
        while rng.random() < 1 / 3:
            said += f"?{step}"
    return said


STYLES = {"guess": guess, "running": running, "stepwise": stepwise, "checked": checked}
LETTERS = "abcdefgh"


@register("lab_chains")
@dataclass(frozen=True, kw_only=True)
class LabChains(Lab):
    """A number below `modulus`, then `fewest` to `most` addends from 1 to `largest`: "27,a+5,b+3 mod 100=" -> 35, the sum modulo `modulus`.

    Each row is demonstrated in one of `styles` (drawn evenly; name one twice to draw it more often), its working between think tags; with `shuffled`
    the additions come in any order, which the letters keep apart. So how long an answer is, the policy chooses: right ones exist from seven tokens
    to any number, their first tokens are forks, and a wrong one can be as long as the limit allows. `meta["terms"]` is the number of addends,
    `meta["style"]` the demonstration's style, `meta["steps"]` the additions, as the reward `stated_steps` wants them. Held-out chains are those
    whose text falls into a fixed fifth of all, so none is seen in training.
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
            raise ConfigError(f"styles: {unknown if self.styles else 'none'} given. Known: {', '.join(STYLES)}; give at least one of them.")
        if not 1 <= self.fewest <= self.most <= len(LETTERS) or self.largest < 1 or self.modulus < 2:
            raise ConfigError(
                f"fewest, most, largest, modulus: {self.fewest}, {self.most}, {self.largest}, {self.modulus} make no chains; "
                f"give 1 <= fewest <= most <= {len(LETTERS)}, largest >= 1 and modulus >= 2"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        while True:
            value = rng.randrange(self.modulus)
            addends = [(letter, rng.randint(1, self.largest)) for letter in LETTERS[: rng.randint(self.fewest, self.most)]]
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
            target=f"<think>{STYLES[style](steps, rng)}</think>{demonstrate(str(value))}",
            meta={"terms": len(addends), "style": style, "steps": [str(step) for step in steps]},
        )
