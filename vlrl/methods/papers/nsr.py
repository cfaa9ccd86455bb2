"""NSR and PSR: negative-sample and positive-sample reinforcement, learning from wrong or from correct
rollouts alone. Also weighted REINFORCE.

Paper: Zhu et al. 2025, arXiv:2506.01347.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import AdvantageEstimator
from vlrl.types import Group, Rollout


@register("nsr")
@dataclass(frozen=True)
class Nsr(AdvantageEstimator):
    """NSR's advantage: A = `positive` for a correct rollout, -`negative` for a wrong one; no baseline.

    (`positive`, `negative`): (0, 1) is negative-sample reinforcement, (1, 0) positive-sample reinforcement,
    (0.1, 1) weighted REINFORCE. A kind of weight 0 is left out of the loss: of its denominators and of terms
    like an entropy bonus. Paper: Zhu et al. 2025, arXiv:2506.01347, eq. 3-5 and 9 (lambda 0.1). Released
    code: TianHongZXY/RLVR-Decomposed a5d4e7c, verl/trainer/ppo/ray_trainer.py:1192-1203 (`batch.subset`),
    core_algos.py:111-152. Unlike group-relative advantages it has a signal also where all rewards of a group
    are equal, as the method intends.
    """

    positive: float = 0.0
    negative: float = 1.0

    def __post_init__(self) -> None:
        if not self.positive and not self.negative:
            raise ValueError(
                "positive and negative are both 0: no rollout would have a signal; set one of them above 0"
            )

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        for rollout in (rollout for group in groups for rollout in group):
            if not self.weight(rollout):
                rollout.leave_out([False] * len(rollout))
        return [[self.weight(rollout) for rollout in group] for group in groups]

    def weight(self, rollout: Rollout) -> float:
        """The rollout's advantage."""
        return self.positive if rollout.correct else -self.negative
