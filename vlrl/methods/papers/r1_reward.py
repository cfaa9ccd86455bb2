"""R1-Reward (StableReinforce): Reinforce++ without advantage outliers, and with log-ratios clipped before the
exponential.

    r1_reward.sigma_filter   advantage: whitened over the step, outliers set to 0
    r1_reward.pre_clip       policy loss: PPO's clip on pre-clipped ratios

Paper: R1-Reward (StableReinforce), arXiv:2505.02835, sec. 3.2, with released code. Deviates: the
advantage is filtered per rollout and without the KL (yfzhang114/r1_reward 3693413,
openrlhf/trainer/ppo_utils/replay_buffer.py: per token of the return, KL included, and outside 3 of the mean
before whitening).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.functional import clipped_ratio_loss
from vlrl.functional.exact import mean, std
from vlrl.plugins.registry import register
from vlrl.plugins.stages import AdvantageEstimator, PolicyLoss
from vlrl.types import Group, LossInputs, UnreducedLoss


@register("r1_reward.sigma_filter")
@dataclass(frozen=True)
class R1RewardSigmaFilter(AdvantageEstimator):
    """StableReinforce's advantage filter: A = (r - mean) / (std + eps) over the step, and 0 where |A| >
    sigma.

    Paper: R1-Reward (StableReinforce), arXiv:2505.02835, sec. 3.2 (3 sigma; Reinforce++ as base).
    Edge: equal rewards give zeros; fewer than eleven rollouts cannot have an outlier beyond 3 sigma.
    """

    sigma: float = 3.0
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.sigma <= 0:
            raise ValueError(f"sigma={self.sigma} must be above 0 (3 is the paper's)")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        rewards = [reward for group in groups for reward in group.rewards]
        centre, spread = mean(rewards), std(rewards, unbiased=False)

        def advantage(reward: float) -> float:
            value = (reward - centre) / (spread + self.eps) if reward != centre else 0.0
            return value if abs(value) <= self.sigma else 0.0

        return [[advantage(reward) for reward in group.rewards] for group in groups]


@register("r1_reward.pre_clip")
@dataclass(frozen=True)
class R1RewardPreClip(PolicyLoss):
    """StableReinforce's pre-clip: L = -min(r A, clip(r, 1 - low, 1 + high) A),  r = exp(clip(log pi - log
    pi_old, ln floor, ln ceiling)).

    Paper: R1-Reward (StableReinforce), arXiv:2505.02835, sec. 3.2. Released code: yfzhang114/r1_reward,
    openrlhf/models/loss.py, commit 3693413 (bounds 1e-3 and 1e3). It acts only with several updates per
    batch, since the ratio is 1 in the first one.
    Edge: on the old policy it is PPO; a token whose log-ratio is outside the bounds gets no gradient. Shapes:
    (B, T).
    """

    low: float = 0.2
    high: float = 0.2
    floor: float = 1e-3
    ceiling: float = 1e3

    def __post_init__(self) -> None:
        if not 0 < self.floor < 1 < self.ceiling:
            raise ValueError(
                f"floor={self.floor}, ceiling={self.ceiling}: must lie on either side of a ratio of 1, "
                "above 0"
            )

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        ratio_BT = x.log_ratio_BT.clamp(math.log(self.floor), math.log(self.ceiling)).exp()
        return clipped_ratio_loss(ratio_BT, x.advantage_BT, self.low, self.high)
