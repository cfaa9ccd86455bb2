"""Boolean satisfiability problems (SATURN) and chains of arithmetic problems (R-Horizon)."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer

NAMES = "abcdefghijklmnopqrstuvwxyz"
Clause = tuple[int, ...]  # literals: +i for variable i (from 1), -i for its negation


def satisfied(clauses: list[Clause] | tuple[Clause, ...], bits: str) -> bool:
    """Whether every clause has a true literal; bit i - 1 is variable i."""
    return all(
        any((bits[abs(literal) - 1] == "1") == (literal > 0) for literal in clause) for clause in clauses
    )


def difficulty(n: int, k: int, l: int) -> float:  # noqa: E741 (the paper's letter)
    """D(n, k, l) = log2(k) + 2 log2(l) - n + k / n. Paper: SATURN, arXiv:2505.16368, sec. 3.3."""
    return math.log2(k) + 2 * math.log2(l) - n + k / n


@register("gen_sat")
@dataclass(frozen=True, kw_only=True)
class GenSat(GeneratedSource):
    """`clauses` clauses of `width` literals over `variables` variables, satisfiable by construction; any
    satisfying assignment is correct.

    Paper: SATURN, arXiv:2505.16368, sec. 3 (SAT(n, k, l) with n = width, k = variables, l = clauses). Reward:
    `sat`, which evaluates the clauses in `answer` (lists of signed variable numbers). `meta.difficulty` is
    the paper's estimate.
    """

    width: int = 3
    variables: int = 4
    clauses: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.width <= self.variables <= len(NAMES) or self.clauses < 1:
            raise ConfigError(
                f"width={self.width}, variables={self.variables}, clauses={self.clauses}: give 1 <= width "
                "<= variables <= 26"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        hidden = "".join(rng.choice("01") for _ in range(self.variables))
        clauses: list[Clause] = []
        while len(clauses) < self.clauses:
            clause = tuple(
                v * rng.choice((1, -1)) for v in sorted(rng.sample(range(1, self.variables + 1), self.width))
            )
            if satisfied([clause], hidden):
                clauses.append(clause)
        clause_text = " and ".join(
            "(" + " or ".join(("not " if v < 0 else "") + NAMES[abs(v) - 1] for v in clause) + ")"
            for clause in clauses
        )
        order = " ".join(NAMES[: self.variables])
        question = (
            f"{clause_text}\nGive 0 or 1 for each of {order}, in this order, so that all of this is true."
        )
        meta = {
            "variables": self.variables,
            "difficulty": round(difficulty(self.width, self.variables, self.clauses), 3),
        }
        return Row(
            self.id(index),
            question,
            [list(clause) for clause in clauses],
            task="sat",
            target=tagged_answer(hidden),
            meta=meta,
        )


@register("gen_chain")
@dataclass(frozen=True, kw_only=True)
class GenChain(GeneratedSource):
    """`horizon` sums, each using the result of the one before; the answer is the list of all results.

    Paper: R-Horizon, arXiv:2510.08189, sec. 3 (query composition: a number of problem i + 1 becomes a
    function of answer i). Reward: `chain` (all right, the last one, or the share). Here the seed problems are
    sums of numbers up to `largest`. `link` "answer": the answer before takes the number's place; "variable":
    a variable does, whose definition from the answer restores the number, as in meituan-longcat/R-HORIZON
    ed98e43e, data_contruction/step3_combine_problems.py, so that every problem keeps its own answer.
    """

    horizon: int = 3
    largest: int = 9
    link: Literal["answer", "variable"] = "answer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.horizon < 1 or self.largest < 1:
            raise ConfigError(f"horizon={self.horizon} and largest={self.largest} must be at least 1")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        lines: list[str] = []
        answers: list[int] = []
        for step in range(1, self.horizon + 1):
            text, value = self._problem(rng, step, answers[-1] if answers else None)
            lines.append(f"{step}) {text}")
            answers.append(value)
        question = "\n".join([*lines, "Answer all of them, in order, separated by commas."])
        return Row(
            self.id(index),
            question,
            answers,
            task="chain",
            target=tagged_answer(",".join(map(str, answers))),
            meta={"horizon": self.horizon},
        )

    def _problem(self, rng: random.Random, step: int, before: int | None) -> tuple[str, int]:
        a, b = rng.randint(0, self.largest), rng.randint(0, self.largest)
        sign = rng.choice("+-")
        if before is None:
            return f"{a}{sign}{b}", a + b if sign == "+" else a - b
        if self.link == "variable":
            sum_of_both = a + b if sign == "+" else a - b
            gap = f"{'+' if a >= before else '-'}{abs(a - before)}"
            return f"[variable {step}] = [answer {step - 1}]{gap}. [variable {step}]{sign}{b}", sum_of_both
        return f"[answer {step - 1}]{sign}{b}", before + b if sign == "+" else before - b
