"""OPO: on-policy RL with the optimal reward baseline, the one with the least variance of the gradient.

`opo` is an advantage estimator, meant for exactly on-policy steps.

Paper: Hao et al. 2025 (On-Policy RL with Optimal reward baseline), arXiv:2505.23585, eq. 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.functional import opo_advantages
from vlrl.methods.core.advantage import GroupRelative, by_group, flat_lengths, flat_rewards
from vlrl.plugins.registry import register
from vlrl.types import Group


@register("opo")
@dataclass(frozen=True)
class OPO(GroupRelative):
    """OPO's advantage: the reward minus the length-weighted mean reward of the group.

        A_i = r_i - sum_j n_j r_j / sum_j n_j

    n_j is the number of trained tokens of rollout j. Edge: equal rewards give zeros.
    """

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        reward_B, group_B = flat_rewards(groups)
        return by_group(opo_advantages(reward_B, flat_lengths(groups), group_B), groups)
