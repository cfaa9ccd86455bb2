"""Leave-one-out baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.advantage.grpo import GroupRelative
from vlrl.registry import register
from vlrl.types import Group


@register("rloo")
@dataclass(frozen=True)
class RLOO(GroupRelative):
    """A_i = r_i - mean of the other rewards = G / (G - 1) * (r_i - mean r).

    Paper: Ahmadian et al. 2024, arXiv:2402.14740, eq. 8 (Kool et al. 2019).
    Edge: a rollout alone in its group gets zero.
    """

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        result = []
        for group in groups:
            rewards = group.rewards
            if len(rewards) < 2 or min(rewards) == max(rewards):
                result.append([0.0] * len(rewards))
                continue
            total = math.fsum(rewards)
            result.append([r - (total - r) / (len(rewards) - 1) for r in rewards])
        return result
