"""Countdown with search traces of a controlled number of backtracks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer

Step = tuple[int, str, int, int]  # a, operation, b, result


def moves(numbers: list[int]) -> list[tuple[Step, list[int]]]:
    """Every way to join two of the numbers, with what is left: sums, differences above 0, products."""
    found = []
    for i in range(len(numbers)):
        for j in range(len(numbers)):
            if i == j:
                continue
            a, b = numbers[i], numbers[j]
            rest = [n for place, n in enumerate(numbers) if place not in (i, j)]
            if i < j:
                found += [((a, "+", b, a + b), [*rest, a + b]), ((a, "*", b, a * b), [*rest, a * b])]
            if a > b:
                found.append(((a, "-", b, a - b), [*rest, a - b]))
    return found


def solutions(numbers: list[int], goal: int) -> Iterator[list[Step]]:
    """Every sequence of steps that uses all numbers and ends at the goal."""
    if len(numbers) == 1:
        if numbers[0] == goal:
            yield []
        return
    for step, rest in moves(numbers):
        for later in solutions(rest, goal):
            yield [step, *later]


def failures(numbers: list[int], goal: int, rng: random.Random) -> Iterator[list[Step]]:
    """Sequences that use all numbers and miss the goal, in a random order without end."""
    while True:
        left, steps = list(numbers), []
        while len(left) > 1:
            step, left = rng.choice(moves(left))
            steps.append(step)
        if left[0] != goal:
            yield steps


def told(steps: list[Step]) -> str:
    """Steps as text: "3+4=7, 7*2=14"."""
    return ", ".join(f"{a}{sign}{b}={result}" for a, sign, b, result in steps)


@register("gen_countdown")
@dataclass(frozen=True, kw_only=True)
class GenCountdown(GeneratedSource):
    """Countdown: join all numbers to the goal by +, - and *; each demonstration searches with exactly
    `backtracks` failed tries before the one that works.

    The answer is the goal; `meta.expression` the steps. With `shuffled` the tries of a demonstration are
    those of other numbers: their content is wrong, the form stays. Paper: How Much Backtracking is Enough?,
    arXiv:2505.24273, sec. 3 (traces of a depth-first search with a set number of backtracks; correct
    against shuffled content). Held out is a fixed fifth of the problems, by the hash of their text."""

    numbers: int = 3
    largest: int = 9
    backtracks: int = 1
    shuffled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.numbers <= 4 or self.largest < 2 or self.backtracks < 0:
            raise ConfigError(
                f"numbers={self.numbers} must be 2 to 4, largest={self.largest} at least 2, "
                f"backtracks={self.backtracks} at least 0"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        while True:
            numbers, goal, steps = self.problem(rng)
            text = f"Numbers {', '.join(map(str, numbers))}; goal {goal}."
            if (random.Random(f"countdown split {text}").random() < 0.2) == (self.split == "heldout"):
                break
        shown = self.problem(rng)[0] if self.shuffled else numbers
        tries = failures(shown, goal, rng)
        wrong = "".join(f"{told(next(tries))}: not {goal}, back. " for _ in range(self.backtracks))
        question = (
            f"Join all the numbers {', '.join(map(str, numbers))} by +, - and * to reach {goal}, "
            f"each once. Give the "
            f"steps, like 2+3=5, 5*4=20."
        )
        target = f"<think>{wrong}{told(steps)}: that is {goal}.</think>{tagged_answer(told(steps))}"
        meta = {"numbers": numbers, "goal": goal, "backtracks": self.backtracks}
        return Row(self.id(index), question, told(steps), task="countdown", target=target, meta=meta)

    def problem(self, rng: random.Random) -> tuple[list[int], int, list[Step]]:
        """Numbers, a goal that they reach, and steps to it."""
        numbers = [rng.randint(1, self.largest) for _ in range(self.numbers)]
        left, steps = list(numbers), []
        while len(left) > 1:
            step, left = rng.choice(moves(left))
            steps.append(step)
        return numbers, left[0], steps
