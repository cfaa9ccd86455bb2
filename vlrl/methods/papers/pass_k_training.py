"""Pass@k training: advantages of a rollout as a member of a random set of k rollouts, rewarded by the best of
the set.

`pass_k_training` is an advantage estimator.

Paper: Chen et al. 2025 (Pass@k Training), arXiv:2508.10751, eq. 10-16 (the analytic form).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.functional import pass_at_k_advantages
from vlrl.methods.core.advantage import by_group, flat_rewards
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import AdvantageEstimator
from vlrl.services.lazy import torch
from vlrl.types import Group


@register("pass_k_training")
@dataclass(frozen=True)
class PassKTraining(AdvantageEstimator):
    """Pass@k advantages, in closed form.

        A(correct) = (1 - R) / s,  A(wrong) = (1 - R - C(w - 1, k - 1) / C(n - 1, k - 1)) / s
        R = 1 - C(w, k) / C(n, k),  s = sqrt(R (1 - R))

    n is the number of rollouts of the group, w that of the wrong ones, R the expected best of k.
    Edge: R of 0 or 1 (all wrong, or fewer than k wrong) gives zeros; k is at most n.
    """

    k: int = 4

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k={self.k} must be at least 1")

    def check(self, phase: PhaseContext) -> None:
        if self.k >= phase.group_size:
            raise ConfigError(
                f"advantage.k={self.k} must be below group_size={phase.group_size}: the best of all rollouts "
                "distinguishes none of them"
            )

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        _, group_B = flat_rewards(groups)
        correct_B = torch.tensor(
            [float(rollout.correct) for group in groups for rollout in group], dtype=torch.float64
        )
        return by_group(pass_at_k_advantages(correct_B, group_B, self.k), groups)
