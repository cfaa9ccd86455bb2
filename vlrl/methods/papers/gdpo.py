"""Every reward normalised on its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.methods.core.advantage import GroupRelative, centred, std
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
        sums = []
        for group in groups:
            total = [0.0] * len(group)
            for slot in sorted(set.intersection(*(set(r.rewards) for r in group)) if len(group) else ()):
                scores, weight = group.raw(slot), weights.get(slot, 1.0)
                total = [t + weight * z for t, z in zip(total, centred(scores, std(scores, self.unbiased) + self.eps))]
            sums.append(total)
        if not self.whiten:
            return sums
        flat = [value for total in sums for value in total]
        spread = std(flat, self.unbiased) + self.eps
        centre = math.fsum(flat) / max(len(flat), 1)  # zero up to rounding: every group is centred
        return [[(value - centre) / spread if any(total) else 0.0 for value in total] for total in sums]
