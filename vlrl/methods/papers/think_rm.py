"""Think-RM's pairwise RLHF: advantages come from how much better each rollout is than its siblings, without a
score of its own.

    think_rm   advantage: the mean margin of a rollout over the spread of all margins of its group

The margins are those of reward `judged_margins`; the judge is trained by reward `preference_strength`.
Paper: Hong et al. 2025 (Think-RM), arXiv:2505.16265.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.beside.judge import MARGINS
from vlrl.plugins.registry import register
from vlrl.plugins.stages import AdvantageEstimator
from vlrl.types import Group


@register("think_rm")
@dataclass(frozen=True)
class ThinkRm(AdvantageEstimator):
    """Think-RM's advantage from pairwise margins d of a group of G.

        A_i = r_i / sqrt( sum_ij d_ij^2 / (2 G (G - 1)) + eps ),  r_i = sum_j d_ij / G the reward

    With d_ij = s_i - s_j of scores s this is GRPO's (s_i - mean) / std. Paper: Hong et al. 2025, Think-RM,
    arXiv:2505.16265; released code: compute_grpo_difference_advantage of IlgeeHong/Think-RM at 2976ace,
    PairwiseRLHF/verl/trainer/ppo/core_algos.py:106-164. Edge: a group of one, or without margins, has
    advantage 0; of a dropped rollout the margins of its siblings stay.
    """

    eps: float = 1e-6

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return [self.of_group(group) for group in groups]

    def of_group(self, group: Group) -> list[float]:
        """The advantages of a group."""
        size = len(group)
        if size < 2:
            return [0.0] * size
        squares = math.fsum(value * value for rollout in group for value in MARGINS.get(rollout, []))
        scale = math.sqrt(squares / (2 * size * (size - 1)) + self.eps)
        return [rollout.reward / scale if squares else 0.0 for rollout in group]
