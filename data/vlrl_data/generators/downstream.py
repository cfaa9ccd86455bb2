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
