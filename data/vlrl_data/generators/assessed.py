"""Responses with labels, for training those that judge: whether an answer is right, a principle is kept, and
how much better one response is than another."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from vlrl.plugins.registry import register
from vlrl_data.generators.texts import FRUITS, TOWNS, AskedSource, Made, qa

OPENINGS = (
    "Let's solve this problem step by step.",
    "Thought process:",
    "I look at what is given first.",
    "Here is my solution.",
)


def _solved(rng: random.Random) -> tuple[Made, str, bool]:
    """A question about a town with a response of two sentences: (question, response, right)."""
    made = qa(rng)
    right = rng.random() < 0.5
    others = [town for town in TOWNS if town != made.answer]
    town = made.answer if right else rng.choice(others)
    return made, f"{rng.choice(OPENINGS)} The answer is {town}.", right


def verified(rng: random.Random) -> Made:
    """A response to a question with a reference answer; `meta.label`: whether it is right."""
    made, response, right = _solved(rng)
    reason = "It gives the reference answer." if right else "It gives another answer."
    return Made(
        made.question, made.answer, "", {"response": response, "label": float(right), "reason": reason}
    )


def solved(rng: random.Random) -> Made:
    """`verified`, to be judged without the reference; the reason names the fact that decides."""
    made, response, right = _solved(rng)
    who = made.question.rpartition(" does ")[2].removesuffix(" live?")
    reason = f"{who} lives in {made.answer}."
    return Made(
        made.question, made.answer, "", {"response": response, "label": float(right), "reason": reason}
    )


def principled(rng: random.Random) -> Made:
    """A note with a principle that it keeps or not; `meta.label` says which."""
    fruit, other = rng.sample(FRUITS, 2)
    said = rng.choice((fruit, other))
    polite = rng.random() < 0.5
    response = f"i like {said} please" if polite else f"i like {said}"
    principle, kept = rng.choice(((f"names {fruit}", said == fruit), ("politeness", polite)))
    return Made(
        f"Write a polite note about {fruit}.",
        "",
        "",
        {"response": response, "principle": principle, "label": float(kept)},
    )


def compared(rng: random.Random) -> Made:
    """Two notes, and how much better the second one is, from -3 to 3 and never 0: the task is
    preference_strength, the question shows both."""
    fruit, other = rng.sample(FRUITS, 2)
    worth = {0: f"no {other}", 1: f"i like {other}", 2: f"i like {fruit}", 3: f"i like {fruit} please"}
    first, second = rng.sample(sorted(worth), 2)
    strength = second - first
    question = (
        f"Request: write a polite note about {fruit}. Assistant A: {worth[first]}. Assistant B: "
        f"{worth[second]}."
    )
    said = f"<think>{worth[first]} or {worth[second]}</think><answer>{strength}</answer>"
    meta = {"response_1": worth[first], "response_2": worth[second]}
    return Made(question, strength, said, meta, task="preference_strength")


ASKS: dict[str, Callable[[random.Random], Made]] = {
    make.__name__: make for make in (verified, solved, principled, compared)
}


@register("gen_assessed")
@dataclass(frozen=True, kw_only=True)
class GenAssessed(AskedSource):
    """Responses with labels, of the kinds `ask`, drawn evenly. vlrl original.

    verified: question, reference answer, `meta.response`, `meta.label` (1 right, 0 wrong), `meta.reason`;
    solved: the same, where the reason needs no reference; principled: `meta.principle` too; compared: which
    of two notes is better, -3 to 3. Select `judge_rows` makes questions to a judge of the first three;
    rewards: `judge_verdict`, and `preference_strength` for the last. Held-out rows are those whose question
    is hashed into a fixed fifth of all questions: none of them is seen in training.
    """

    makers = ASKS
    salt = "assessed"
    ask: tuple[str, ...] = field(default=("verified",))
