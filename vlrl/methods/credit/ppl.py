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
    """A_{i,t} = A_i + sign(A_i) gamma sigmoid(steepness (t / (n - 1) - middle)).

    Paper: Deng et al. 2025, arXiv:2508.02260, sec. 5.2.  Deviates: gamma, steepness and middle are vlrl's (the formula is from memory of the paper).
    Edge: A = 0 stays 0; a single token is at position 1.
    """

    gamma: float = 0.1
    steepness: float = 10.0
    middle: float = 0.5

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        result = []
        for a, rollout in zip(advantages, group, strict=True):
            n = len(rollout)
            places = [t / (n - 1) if n > 1 else 1.0 for t in range(n)]
            bonus = [self.gamma / (1 + math.exp(-self.steepness * (place - self.middle))) for place in places]
            result.append([a + math.copysign(b, a) if a else 0.0 for b in bonus])
        return result
