"""Advantages of the best of k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.functional import pass_at_k_advantages
from vlrl.methods.core.advantage import by_group, flat_rewards
from vlrl.registry import ConfigError, register
from vlrl.stages import AdvantageEstimator
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("pass_k_training")
@dataclass(frozen=True)
class PassKTraining(AdvantageEstimator):
    """A(right) = (1 - R) / s,  A(wrong) = (1 - R - C(w - 1, k - 1) / C(n - 1, k - 1)) / s,  R = 1 - C(w, k) / C(n, k),  s = sqrt(R (1 - R)).

    n rollouts, w of them wrong: R is the expected best of k.
    Paper: Chen et al. 2025 (Pass@k Training), arXiv:2508.10751, eq. 10-16 (the analytic form).
    A rollout is right if its reward is above `threshold`.  Edge: R of 0 or 1 (all wrong, or fewer than k wrong) gives zeros; k is at most n.
    """

    k: int = 4
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k={self.k} must be at least 1")

    def check(self, run: RunContext) -> None:
        if self.k >= run.group_size:
            raise ConfigError(f"advantage.k={self.k} must be below group_size={run.group_size}: the best of all rollouts tells none of them apart")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        reward_B, group_B = flat_rewards(groups)
        return by_group(pass_at_k_advantages((reward_B > self.threshold).to(reward_B), group_B, self.k), groups)
