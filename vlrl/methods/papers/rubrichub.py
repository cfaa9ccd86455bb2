"""RubricHub's first stage, RuFT: of several samples the one with the best rubric score is imitated.

    rubrichub.best   reward shaping: leaves out all rollouts of a group but the best

The threshold is `min_reward` of the loss term `nll`; the second stage, RuRL, is GRPO on the rubric's score.
How rubrics are written, coarse to fine, is in `vlrl.beside.rubric_writer`.
Paper: Li et al. 2026 (RubricHub), arXiv:2601.08430; teqkilla/RubricHub at d21dc07e has the data alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group, Rollout


@register("rubrichub.best")
@dataclass(frozen=True)
class RubrichubBest(RewardShaping):
    """RuFT's rejection sampling: only the rollout of a group with the highest reward carries loss, the first
    of equal ones.

    Rewards stay as they are. Paper: Li et al. 2026 (RubricHub), arXiv:2601.08430, sec. 4.1. Edge: a group of
    one is kept.
    """

    def __call__(self, group: Group) -> list[float]:
        best = max(range(len(group)), key=lambda place: quality(group.rollouts[place]), default=0)
        for place, rollout in enumerate(group):
            if place != best:
                rollout.leave_out([False] * len(rollout))
        return group.rewards


def quality(rollout: Rollout) -> float:
    """What the rollouts of a group are ranked by."""
    return rollout.reward
