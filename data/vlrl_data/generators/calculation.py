"""Arithmetic expressions drawn on the spot, which no model can have memorised."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from fractions import Fraction

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer

TRIES = 1000


@register("gen_calculation")
@dataclass(frozen=True, kw_only=True)
class GenCalculation(GeneratedSource):
    """RandomCalculation: expressions of `steps` operations over integers from 0 to `largest`, their
    fractions, squares and cubes.

    An expression of i operations joins one of j and one of i - 1 - j, j even among 0 .. ceil(i / 2), in
    either order, by +, -, * or /. Paper: RandomCalculation, arXiv:2507.10532, sec. 4.3 and algorithm 1 (1 to
    20 steps, integers from 0 to 100). Deviates: our wording; answers are decimals of six digits;
    expressions that divide by 0 or are beyond 1e9 are drawn again. Held out is a fixed fifth of the
    expressions, by the hash of their text. Reward: `closeness`, mode "distance".
    """

    steps: int = 5
    largest: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1 or self.largest < 1:
            raise ConfigError(f"steps={self.steps} and largest={self.largest} must be at least 1")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        for _ in range(TRIES):
            made = expression(rng, self.steps, self.largest)
            if made is None or abs(made[1]) > 10**9:
                continue
            text = made[0].removeprefix("(").removesuffix(")")
            if (random.Random(f"calculation split {text}").random() < 0.2) == (self.split == "heldout"):
                break
        else:
            raise ConfigError(
                f"gen_calculation: no expression with a value up to 1e9 in {TRIES} tries; lower "
                f"steps={self.steps}"
            )
        answer = decimal(made[1])
        question = f"Calculate step by step and give the result as a decimal number: {text}"
        return Row(
            self.id(index),
            question,
            float(answer),
            task="calculation",
            target=f"<think>calculate</think>{tagged_answer(answer)}",
        )


def basic(rng: random.Random, largest: int) -> tuple[str, Fraction]:
    """An integer, a fraction, a square or a cube: text and value."""
    n, kind = rng.randint(0, largest), rng.randrange(4)
    if kind == 1:
        below = rng.randint(1, largest)
        return f"({n}/{below})", Fraction(n, below)
    return (str(n) if kind == 0 else f"{n}^{kind}"), Fraction(n) ** max(kind, 1)


def expression(rng: random.Random, steps: int, largest: int) -> tuple[str, Fraction] | None:
    """An expression of `steps` operations in parentheses, and its value; None where it divides by 0."""
    if steps == 0:
        return basic(rng, largest)
    j = rng.randint(0, min(math.ceil(steps / 2), steps - 1))
    parts = [expression(rng, j, largest), expression(rng, steps - 1 - j, largest)]
    sign = rng.choice("+-*/")
    if rng.random() < 0.5:
        parts.reverse()
    left, right = parts
    if left is None or right is None or (sign == "/" and not right[1]):
        return None
    value = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__, "/": Fraction.__truediv__}[
        sign
    ](left[1], right[1])
    return f"({left[0]} {sign} {right[0]})", value


def decimal(value: Fraction) -> str:
    """A number with up to six decimals, without trailing zeros."""
    text = f"{float(value):.6f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
