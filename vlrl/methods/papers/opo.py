"""The variance-minimising baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.core.advantage import GroupRelative
from vlrl.registry import register
from vlrl.types import Group


@register("opo")
@dataclass(frozen=True)
class OPO(GroupRelative):
    """A_i = r_i - sum_j n_j r_j / sum_j n_j, n the length in tokens.

    Paper: Hao et al. 2025 (On-Policy RL with Optimal reward baseline), arXiv:2505.23585, eq. 7.
    Meant for exactly on-policy steps.  Edge: equal rewards give zeros.
    """

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        result = []
        for group in groups:
            rewards, lengths = group.rewards, [len(rollout) for rollout in group]
            if not rewards or min(rewards) == max(rewards):
                result.append([0.0] * len(rewards))
                continue
            baseline = math.fsum(r * n for r, n in zip(rewards, lengths)) / max(sum(lengths), 1)
            result.append([r - baseline for r in rewards])
        return result
