"""Clipped and differenced process rewards: what a process reward model adds to the success reward is bounded.

`clip_delta_prm_rewards` reads STEP_SCORES (a process reward model, `pure.process_rewards`) and writes
TOKEN_REWARDS, which advantages with `token_rewards` take.
Paper: Gao et al. 2024, arXiv:2410.15115.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from vlrl.methods.common.step_scores import STEP_SCORES, add_token_rewards
from vlrl.methods.core.reward_shaping import READS_TOKEN_REWARDS, TOKEN_REWARDS
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group


@register("clip_delta_prm_rewards")
@dataclass(frozen=True)
class ClipDeltaPRMRewards(RewardShaping):
    """Clip, then delta, of the scores r_1 .. r_K of a process reward model, as rewards at the steps' ends.

        clip:   r_k <- min(r_k - eta, 0)
        delta:  r_k <- r_k - r_{k+1} for k < K - 1,  r_{K-1} <- r_{K-1},  r_K <- 0

    After both the return from step k on is alpha min(r_k - eta, 0): neither more steps nor repeated ones gain
    anything. r_k is P(step k is right). Rewards of the rollouts stay as they are: the success reward is at
    the last token. Paper: Gao et al. 2024, arXiv:2410.15115, sec. 4.2 (mechanisms as summarised in published
    notes; no code was found). eta is not given there: 1/2 is ours. Edge: a rollout of one step has no process
    reward with `delta`.
    """

    alpha: float = 1.0
    eta: float = 0.5
    clip: bool = True
    delta: bool = True
    provides = (TOKEN_REWARDS,)
    requires = (STEP_SCORES, READS_TOKEN_REWARDS)

    def __call__(self, group: Group) -> list[float]:
        for rollout in group:
            steps = STEP_SCORES.get(rollout, [])
            values = self.values([(1 + score) / 2 for _, score in steps])
            add_token_rewards(
                rollout, [(end, self.alpha * v) for (end, _), v in zip(steps, values, strict=True)]
            )
        return group.rewards

    def values(self, scores: Sequence[float]) -> list[float]:
        """The rewards of the steps, from their probabilities to be right."""
        found = [min(score - self.eta, 0.0) if self.clip else score for score in scores]
        if not self.delta or not found:
            return found
        return [*(a - b for a, b in pairwise(found[:-1])), *found[:-1][-1:], 0.0]
