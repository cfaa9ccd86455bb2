"""GDPO: group reward-decoupled normalisation. Every reward is normalised within its group on its own, then
the weighted sum is whitened.

Paper: Liu et al. 2026 (GDPO), arXiv:2601.05242.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vlrl.functional import gdpo_advantages
from vlrl.methods.core.advantage import GroupRelative, by_group, flat_rewards
from vlrl.plugins.registry import register
from vlrl.services.lazy import torch
from vlrl.types import Group


@register("gdpo")
@dataclass(frozen=True)
class GDPO(GroupRelative):
    """GDPO's advantage: A_i = whiten_batch( sum_k w_k (r_ik - mean_G r_k) / (std_G r_k + eps) ), r_k the raw
    scores of reward slot k.

    `weights` are the w_k by slot; a slot that is not named there has its reward's own weight. `whiten` false
    leaves out the last normalisation. Paper: Liu et al. 2026 (GDPO), arXiv:2601.05242, eq. 4-6.
    Edge: a slot that did not score a whole group adds 0 there; a group in which the scores of every slot are
    equal has advantages of 0, also after whitening.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    eps: float = 1e-6
    unbiased: bool = True
    whiten: bool = True

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        scored_by = [
            set.intersection(*(set(rollout.rewards) for rollout in group)) if len(group) else set()
            for group in groups
        ]
        slots = sorted(set().union(*scored_by))
        rows = [
            [r.rewards[slot] if slot in scored else math.nan for slot in slots]
            for group, scored in zip(groups, scored_by)
            for r in group
        ]
        score_BK = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(slots))
        _, group_B = flat_rewards(groups)
        weights = [self.weight(slot) for slot in slots]
        return by_group(
            gdpo_advantages(
                score_BK, group_B, weights, eps=self.eps, unbiased=self.unbiased, whiten=self.whiten
            ),
            groups,
        )

    def weight(self, slot: str) -> float:
        """w_k: that of `weights`, else the reward's own; 1 where the plug-in is used outside of a run."""
        if slot in self.weights or not self.is_set_up:
            return self.weights.get(slot, 1.0)
        return self.run.rewards[slot].weight if slot in self.run.rewards else 1.0
