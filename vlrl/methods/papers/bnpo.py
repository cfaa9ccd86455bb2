"""BNPO: rewards normalised by a Beta density that is fitted to the step's pass rates.

`bnpo` is an advantage estimator.

Paper: Xiao et al. 2025 (BNPO), arXiv:2506.02864, eq. 9-13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.functional.exact import mean, std
from vlrl.methods.core.advantage import GroupRelative
from vlrl.plugins.capabilities import RewardSlot
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Group


@register("bnpo")
@dataclass(frozen=True)
class BNPO(GroupRelative):
    """Beta normalisation: the centred reward divided by a Beta density at the group's mean reward.

        A = (r - p) / Beta(p; alpha, beta),  p the mean reward of the prompt's group
        alpha = max(1, 1 + a / 3),  beta = max(1, 1 + b / 3),  a = k m,  b = k (1 - m),  k = m (1 - m) / v - 1

    m and v are the mean and unbiased variance of all p of the step (as in recipe/bnpo/src/bnpo_ray_trainer.py
    of changyi7231/BNPO a9c51b98). `slots` computes that for each of these raw rewards and takes the mean
    (advantage decomposition); without them it is computed for the total reward divided by `max_reward` (0:
    the sum of the rewards' weights). Rewards must then be in [0, 1]; 1 / density is at most `limit`. Edge: no
    variance between prompts: alpha = beta = 1, REINFORCE with a baseline; alpha = beta = 3/2 would be GRPO's
    sqrt(p (1 - p)).
    """

    slots: tuple[RewardSlot, ...] = ()
    limit: float = 1e6
    max_reward: float = 0.0

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if not self.slots and (
            phase.reward_shaping or any(reward.weight < 0 for reward in phase.rewards.values())
        ):
            raise ConfigError(
                "advantage bnpo needs rewards in [0, 1], which reward_shaping or negative weights may "
                "leave; drop them, or name raw rewards at "
                "advantage.slots that stay in it"
            )

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        scores = [[group.raw(slot) for group in groups] for slot in self.slots] or [self.scaled(groups)]
        parts = [self.of_scores(rows) for rows in scores]
        return [[mean(values) for values in zip(*rows)] for rows in zip(*parts)]

    def scaled(self, groups: Sequence[Group]) -> list[list[float]]:
        """Total rewards divided by the largest possible one."""
        max_reward = self.max_reward or max(sum(reward.weight for reward in self.run.rewards.values()), 1e-9)
        return [[r / max_reward for r in group.rewards] for group in groups]

    def of_scores(self, scores: Sequence[Sequence[float]]) -> list[list[float]]:
        """Advantages for one reward; one list per group."""
        if any(not -1e-9 <= r <= 1 + 1e-9 for row in scores for r in row):
            raise ValueError(
                "bnpo fits a Beta distribution, so rewards must be in [0, 1]; set advantage.max_reward, or "
                "name `slots` that are"
            )
        p = [min(max(mean(row), 0.0), 1.0) for row in scores]
        alpha, beta = self.fit(p)
        weights = [min(1 / max(beta_density(q, alpha, beta), 1e-300), self.limit) for q in p]
        return [[(r - q) * w for r in row] for row, q, w in zip(scores, p, weights)]

    def fit(self, p: Sequence[float]) -> tuple[float, float]:
        """(alpha, beta) by the method of moments."""
        m = mean(p)
        v = std(p) ** 2
        if v <= 1e-12 or not 0 < m < 1:
            return 1.0, 1.0
        k = m * (1 - m) / v - 1
        return max(1.0, 1 + k * m / 3), max(1.0, 1 + k * (1 - m) / 3)


def beta_density(p: float, a: float, b: float) -> float:
    """Beta(p; a, b) for a, b >= 1; 0 ^ 0 is 1."""
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
    return scale * p ** (a - 1) * (1 - p) ** (b - 1)
