"""Questions about integers, each with the theorem that an answer exists, in Lean's notation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vlrl.plugins.registry import register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer


class Posed(NamedTuple):
    """A question, what the existence theorem says of x, and the answer."""

    question: str
    formula: str
    answer: int


@register("gen_existence")
@dataclass(frozen=True, kw_only=True)
class GenExistence(GeneratedSource):
    """Equations, two conditions, multiples and roots over the integers, with one answer each.

    `meta.formal` is the theorem, as `theorem NAME : ∃ x : ℤ, ...`; the demonstration names the answer as
    witness, computes (`norm_num`), and gives the answer. Paper: arXiv:2505.23703 (MATH-500 and AMC,
    translated by a model; these problems are ours). Reward: `numeric`, and `formal_proof` for the proof.
    """

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        x, a, b = rng.randint(-20, 20), rng.randint(2, 9), rng.randint(-30, 30)
        y = rng.randint(1, 20)
        low = a * y
        posed = [
            Posed(
                f"{a} times a number, plus {b}, is {a * x + b}. What is the number?",
                f"{a} * x + {signed(b)} = {signed(a * x + b)}",
                x,
            ),
            Posed(
                f"A number plus {y} is {x + y}, and twice the number is {2 * x}. What is the number?",
                f"x + {y} = {signed(x + y)} ∧ 2 * x = {signed(2 * x)}",
                x,
            ),
            Posed(
                f"Which positive number has the square {y * y}?",
                f"x ^ 2 = {y * y} ∧ x > 0",
                y,
            ),
            Posed(
                f"Which multiple of {a} is greater than {low - a} and less than {low + a}?",
                f"{a} ∣ x ∧ {signed(low - a)} < x ∧ x < {low + a}",
                low,
            ),
        ][rng.randrange(4)]
        tactics = [f"use {posed.answer}", "norm_num"]
        proof = "\n".join(f"  {line}" for line in tactics)
        return Row(
            self.id(index),
            posed.question,
            posed.answer,
            task="existence",
            target=f"```lean4\n{proof}\n```\n{tagged_answer(str(posed.answer))}",
            meta={"formal": f"theorem row_{index} : ∃ x : ℤ, {posed.formula}"},
        )


def signed(number: int) -> str:
    """A number as an operand."""
    return f"({number})" if number < 0 else str(number)
