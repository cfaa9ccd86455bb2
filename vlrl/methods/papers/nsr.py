"""Learning from right and from wrong rollouts apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import AdvantageEstimator
from vlrl.types import Group


@register("nsr")
@dataclass(frozen=True)
class Nsr(AdvantageEstimator):
    """A = `positive` for a right rollout, -`negative` for a wrong one; no baseline.

    (0, 1) is negative-sample reinforcement, (1, 0) positive-sample reinforcement, (0.1, 1) weighted REINFORCE.
    Paper: Zhu et al. 2025, arXiv:2506.01347, eq. 3-5 and 9 (lambda 0.1). Right means a reward above `threshold`.
    Unlike the group-relative ones it has a signal where all rewards are equal: that is the method.
    """

    positive: float = 0.0
    negative: float = 1.0
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not self.positive and not self.negative:
            raise ValueError("positive and negative are both 0: no rollout would have a signal")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return [[self.positive if r > self.threshold else -self.negative for r in group.rewards] for group in groups]
