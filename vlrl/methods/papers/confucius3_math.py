"""Confucius3-Math: policy-specific hardness weighting, larger advantages for prompts that the policy rarely
solves.

`confucius3_math` is an advantage estimator; the target entropy of the paper is the loss term `ter`.

Paper: NetEase Youdao 2025 (Confucius3-Math), arXiv:2506.18330, sec. 3 (slope -0.256, offset 1.256).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.functional.exact import centred, mean
from vlrl.plugins.registry import register
from vlrl.plugins.stages import AdvantageEstimator
from vlrl.types import Group


@register("confucius3_math")
@dataclass(frozen=True)
class Confucius3Math(AdvantageEstimator):
    """Policy-specific hardness weighting (Confucius3-Math).

        A_i = (R_i - mu) (slope mu + offset),  R_i = +1 for a correct rollout, -1 for another one,  mu the
        group's mean R

    Edge: a group in which all or none is correct gives zeros.
    """

    slope: float = -0.256
    offset: float = 1.256

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        result = []
        for group in groups:
            signs = [1.0 if rollout.correct else -1.0 for rollout in group]
            factor = self.slope * mean(signs) + self.offset
            result.append([a * factor for a in centred(signs, 1.0)])
        return result
