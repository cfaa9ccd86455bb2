"""Every reward normalised on its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from vlrl.functional import gdpo_advantages
from vlrl.methods.core.advantage import GroupRelative, by_group, flat_rewards
from vlrl.registry import register
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("gdpo")
@dataclass(frozen=True)
class GDPO(GroupRelative):
    """A_i = whiten_batch( sum_k w_k (r_ik - mean_G r_k) / (std_G r_k + eps) ).

    `weights` by slot; what is not named there takes the reward's own weight. `whiten` false leaves the last normalisation out.
    Paper: Liu et al. 2026, arXiv:2601.05242, eq. 4-6.
    Edge: a slot that did not score a group counts as equal there; a group whose every slot is equal gets zeros and stays at zero.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    eps: float = 1e-6
    unbiased: bool = True
    whiten: bool = True
    reward_weights: dict[str, float] = field(init=False, default_factory=dict, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        self.reward_weights.update({slot: reward.weight for slot, reward in run.rewards.items()})

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        weights = {**self.reward_weights, **self.weights}
        scored_by = [set.intersection(*(set(rollout.rewards) for rollout in group)) if len(group) else set() for group in groups]
        slots = sorted(set().union(*scored_by))
        rows = [[r.rewards[slot] if slot in scored else math.nan for slot in slots] for group, scored in zip(groups, scored_by) for r in group]
        score_BK = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(slots))
        _, group_B = flat_rewards(groups)
        factors = [weights.get(slot, 1.0) for slot in slots]
        return by_group(gdpo_advantages(score_BK, group_B, factors, eps=self.eps, unbiased=self.unbiased, whiten=self.whiten), groups)
