"""Advantages of the whole step, outliers left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.advantage.grpo import mean, std
from vlrl.registry import register
from vlrl.stages import Advantage
from vlrl.types import Group


@register("sigma_filter")
@dataclass(frozen=True)
class SigmaFilter(Advantage):
    """A = (r - mean) / (std + eps) over the step, and 0 where |A| > sigma.

    Paper: R1-Reward (StableReinforce), arXiv:2505.02835, sec. 3.2 (advantage filter, 3 sigma; Reinforce++ as base).
    Deviates: none known. Edge: equal rewards give zeros; fewer than eleven rollouts cannot have an outlier beyond 3 sigma.
    """

    sigma: float = 3.0
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.sigma <= 0:
            raise ValueError(f"sigma={self.sigma} must be above 0 (3 is the paper's)")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        everything = [reward for group in groups for reward in group.rewards]
        centre, spread = mean(everything), std(everything, unbiased=False)

        def score(reward: float) -> float:
            value = (reward - centre) / (spread + self.eps) if reward != centre else 0.0
            return value if abs(value) <= self.sigma else 0.0

        return [[score(reward) for reward in group.rewards] for group in groups]
