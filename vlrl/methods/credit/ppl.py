"""More credit for late tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import Credit
from vlrl.types import Group


@register("late_bonus")
@dataclass(frozen=True)
class LateBonus(Credit):
    """A_{i,t} = A_i + sign(A_i) min(gamma sigmoid(steepness (t / n - 1/2)), |A_i| / 2), t counted from 0.

    Paper: Deng et al. 2025, arXiv:2508.02260, sec. 5.2; gamma 0.1, steepness 15 and the bound as in the released code.
    Edge: A = 0 stays 0.
    """

    gamma: float = 0.1
    steepness: float = 15.0

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        result = []
        for a, rollout in zip(advantages, group, strict=True):
            n = len(rollout)
            bonus = [self.gamma / (1 + math.exp(-self.steepness * (t / n - 0.5))) for t in range(n)]
            result.append([a + math.copysign(min(b, abs(a) / 2), a) for b in bonus])
        return result
