"""Texts that another model works with: captions of geometry, critiques of solutions, sub-questions."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from vlrl.plugins.registry import register
from vlrl.types import Row
from vlrl_data.generators.probed import GenPlanned
from vlrl_data.generators.questions import PRINCIPLES, GenGeometry
from vlrl_data.lab.base import tagged_answer


@register("gen_geometry_caption")
@dataclass(frozen=True, kw_only=True)
class GenGeometryCaption(GenGeometry):
    """A drawn figure to describe so that its problem can be solved without it: `meta.problem` and
    `meta.solution` are for the solver; the answer is the caption of a template.

    Paper: GeoCaption-RLVR, arXiv:2509.15217 (there 50 relations; here those of `gen_geometry`).
    """

    def row(self, index: int) -> Row:
        row = super().row(index)
        principle = str(row.meta["principle"]).rpartition(": ")[2]
        kind, problem, _ = PRINCIPLES[principle]
        picture: Any = row.images[0]
        sides = picture.args[1:3]
        shape = "rectangle" if kind == "rectangle" else "right triangle"
        caption = f"A {shape} with sides of {sides[0]} and {sides[1]}."
        return replace(
            row,
            question="Describe the figure so that a problem about it can be solved without seeing it.",
            answer=caption,
            task="geometry_caption",
            target=tagged_answer(caption),
            meta={**row.meta, "problem": problem, "solution": str(row.answer)},
        )


@register("gen_critique")
@dataclass(frozen=True, kw_only=True)
class GenCritique(GenPlanned):
    """A word problem with a solution, right or wrong by equal chance: is it right, and what is its mistake?
    The answer is "yes" or "no"; `meta.problem`, `meta.solution` and `meta.gold` are for the model that
    rewrites it.

    Paper: RefCritic, arXiv:2507.15024 (there sampled solutions with labels by their answers).
    """

    def row(self, index: int) -> Row:
        row = super().row(index)
        rng = random.Random(f"critique {row.id}")
        right = rng.random() < 0.5
        value = int(row.answer) + (0 if right else rng.choice((-2, -1, 1, 2, 10)))
        solution = f"I get {value}."
        verdict = "yes" if right else "no"
        fix = "It is right." if right else f"The result should be {row.answer}."
        return replace(
            row,
            question=f"{row.question}\nA solution: {solution}\nIs it right? Give your critique, "
            f"then answer yes or no.",
            answer=verdict,
            task="critique",
            target=f"<critique>{fix}</critique>{tagged_answer(verdict)}",
            meta={**row.meta, "problem": row.question, "solution": solution, "gold": row.answer},
        )


@register("gen_checked_steps")
@dataclass(frozen=True, kw_only=True)
class GenCheckedSteps(GenPlanned):
    """A word problem with a solution in steps, of which one is wrong by equal chance, and all after it:
    which steps are right? `meta.steps` with `meta.step_labels`, `meta.problem`; the answer is "yes" if the
    whole solution is right.

    Paper: ThinkPRM, arXiv:2504.16828 (there PRM800K's labels). Reward: `step_verdicts`.
    """

    def row(self, index: int) -> Row:
        row = super().row(index)
        rng = random.Random(f"checked {row.id}")
        parts = row.meta["subproblems"]
        wrong = rng.randrange(len(parts)) if rng.random() < 0.5 else len(parts)
        off = rng.choice((1, 2, 10))
        values = [int(part["answer"]) + (off if place >= wrong else 0) for place, part in enumerate(parts)]
        steps = [f"After step {place} there are {value}." for place, value in enumerate(values, 1)]
        labels = [1.0 if place < wrong else 0.0 for place in range(len(parts))]
        words = ["correct" if label else "incorrect" for label in labels]
        listed = "\n".join(f"Step {place}: {text}" for place, text in enumerate(steps, 1))
        verdict = "yes" if wrong == len(parts) else "no"
        chain = [
            f"Step {place}: there should be {part['answer']}. \\boxed{{{word}}}"
            for place, (part, word) in enumerate(zip(parts, words, strict=True), 1)
        ]
        return replace(
            row,
            question=f"{row.question}\nA solution:\n{listed}",
            answer=verdict,
            task="checked_steps",
            target="\n".join([*chain, f"Verdict: {verdict}"]),
            meta={**row.meta, "problem": row.question, "steps": steps, "step_labels": labels},
        )


@register("gen_abstraction")
@dataclass(frozen=True, kw_only=True)
class GenAbstraction(GenPlanned):
    """A word problem with its answer, of which a program is to be written that makes variants:
    `meta.problem`, `meta.solution`. The demonstration keeps the story and varies its first number.

    Paper: EFAGen, arXiv:2504.09763. Reward: `abstraction`.
    """

    most: int = 1

    def row(self, index: int) -> Row:
        row = super().row(index)
        count = next(word for word in row.question.split() if word.isdigit())
        size = int(str(row.answer)) // int(count)
        text = row.question.replace(count, "{x}", 1)
        program = (
            f"def original():\n    return {count}\n\ndef sample(seed):\n    return 2 + 7 * seed % 50\n\n"
            f"def render(x):\n    return {text!r}.format(x=x)\n\ndef solve(x):\n    return {size} * x"
        )
        return replace(
            row,
            question=(
                f"{row.question}\nThe answer is {row.answer}. Write a program of four functions: "
                f"original() gives this "
                "problem's parameters, sample(seed) others, render(parameters) the question, "
                "solve(parameters) the "
                "answer. Put it in a ```python block."
            ),
            task="abstraction",
            target=f"```python\n{program}\n```",
            meta={**row.meta, "problem": row.question, "solution": str(row.answer)},
        )
