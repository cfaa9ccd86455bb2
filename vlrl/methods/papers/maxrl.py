"""MaxRL: maximum-likelihood reinforcement learning, which approximates the gradient of log p(correct) instead
of that of p(correct).

Paper: Tajwar et al. 2026 (MaxRL), arXiv:2602.02710.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.functional import maxrl_advantages
from vlrl.methods.core.advantage import GroupRelative, by_group, flat_rewards
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Group


@register("maxrl")
@dataclass(frozen=True)
class MaxRL(GroupRelative):
    """MaxRL's advantage: A_i = (r_i - mean r) / mean r, the gradient of log p(correct) up to order G, the
    group size.

    Paper: Tajwar et al. 2026 (MaxRL), arXiv:2602.02710, estimator of sec. 4 (1 / successes times the sum over
    successes of grad log pi, with the mean as control variate). Edge: a group without a success gives zeros.
    Raises ValueError for a negative reward: the divisor is a success rate.
    """

    eps: float = 0.0

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if phase.reward_shaping or any(reward.weight < 0 for reward in phase.rewards.values()):
            raise ConfigError(
                "advantage: 'maxrl' divides by the mean reward, which reward_shaping or a negative reward "
                "weight may make negative; drop them, or "
                "use advantage: {name: grpo}"
            )

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        for group in groups:
            if any(r < 0 for r in group.rewards):
                raise ValueError(
                    f"row {group.row.id!r}: 'maxrl' divides by the mean reward, so rewards must not be "
                    f"negative, got {min(group.rewards)}; "
                    "use advantage: {name: grpo}"
                )
        return by_group(maxrl_advantages(*flat_rewards(groups), eps=self.eps), groups)
