"""Rows as they are collected, before a paper's selection: some can be checked and are of use for training,
others are not. What tells them apart stands in the row.

The rates are made here, beside the question; on real rows `vlrl data difficulty` measures them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from vlrl.plugins.registry import register
from vlrl_data.generators.texts import AskedSource, Made, choice, qa
from vlrl_data.lab.base import tagged_answer

SOLVED_OF_64 = (64, 64, 57, 32, 7, 0)  # of sums that are easy, easy, ... and too hard for a small model
SOLVED_OF_16 = (0, *range(1, 16), 16, 16)


def problem(rng: random.Random) -> Made:
    """Sums as mathematics sets collect them: one half asks for a number, the others offer choices, ask for a
    proof or send to a page; `meta.llama8b_solve_rate` is that of 64 attempts of a small model."""
    level = rng.randrange(len(SOLVED_OF_64))
    numbers = [rng.randint(0, 9) for _ in range(2 + level)]
    total = sum(numbers)
    asked = f"What is {' + '.join(map(str, numbers))}?"
    options = " ".join(f"{letter}) {total + ahead}" for letter, ahead in zip("ABCD", (-1, 0, 1, 2)))
    question = rng.choice(
        (
            asked,
            asked,
            asked,
            f"{asked} {options}",
            f"Prove that {asked[8:-1]} = {total}.",
            f"Look at https://example.com/sums. {asked}",
        )
    )
    meta = {"llama8b_solve_rate": SOLVED_OF_64[level] / 64}
    return Made(question, str(total), tagged_answer(str(total)), meta)


def open_question(rng: random.Random) -> Made:
    """Where a person lives, to be told by the town's name, or in a sentence of eleven words."""
    made = qa(rng)
    facts, _, asked = made.question.rpartition(" Where does ")
    answer = made.answer
    question = f"{facts} Where does {asked}"
    if rng.random() < 0.5:
        who = asked.removesuffix(" live?")
        answer = f"Of the four people in the list {who} lives in {answer}."
        question = f"{facts} Say in a whole sentence where {who} lives."
    return Made(question, answer, f"<think>Who?</think>{tagged_answer(answer)}")


def measured_choice(rng: random.Random) -> Made:
    """A question with four options; `meta.pass_rate` is that of 16 rollouts, and one in 18 has 0, two have
    1."""
    made = choice(rng)
    return made._replace(meta={"pass_rate": rng.choice(SOLVED_OF_16) / 16}, task="choice")


ASKS: dict[str, Callable[[random.Random], Made]] = {
    make.__name__: make for make in (problem, open_question, measured_choice)
}


@register("gen_uncurated")
@dataclass(frozen=True, kw_only=True)
class GenUncurated(AskedSource):
    """Rows before a selection, of the kinds `ask`, drawn evenly. vlrl original.

    problem: sums in the forms of collected mathematics, with solve rates from 0 to 1 (selects `open_ended`
    and `between`; reward `math`); open_question: a short answer or a sentence of more than ten words (select
    `checkable`; reward `verify`); measured_choice: pass rates from 0 to 1 (select `pass_rate`; reward `mcq`,
    task `choice`). Held-out rows are those whose question is hashed into a fixed fifth of all questions.
    """

    makers = ASKS
    salt = "uncurated"
    ask: tuple[str, ...] = field(default=("problem",))
