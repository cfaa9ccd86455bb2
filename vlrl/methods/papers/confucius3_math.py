"""Hard prompts weigh more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.functional.exact import centred, mean
from vlrl.registry import register
from vlrl.stages import AdvantageEstimator
from vlrl.types import Group


@register("confucius3_math")
@dataclass(frozen=True)
class Confucius3Math(AdvantageEstimator):
    """A_i = (R_i - mu) (slope * mu + offset),  R_i = +1 right, -1 wrong,  mu the group's mean R.

    Paper: NetEase Youdao 2025 (Confucius3-Math, policy-specific hardness weighting), arXiv:2506.18330, sec. 3 (slope -0.256, offset 1.256).
    Right means a reward above `threshold`.  Edge: all equal gives zeros.
    """

    slope: float = -0.256
    offset: float = 1.256
    threshold: float = 0.5

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        result = []
        for group in groups:
            signs = [1.0 if r > self.threshold else -1.0 for r in group.rewards]
            factor = self.slope * mean(signs) + self.offset
            result.append([a * factor for a in centred(signs, 1.0)])
        return result
