"""CISPO (MiniMax-M1): clipped importance weights in place of clipped updates.

`cispo` is a policy loss.

Paper: MiniMax 2025, arXiv:2506.13585, eq. 4-5. The paper tunes only the upper bound and removes the lower one
(`low` 1).
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.functional import cispo_loss
from vlrl.plugins.registry import register
from vlrl.plugins.stages import PolicyLoss
from vlrl.types import LossInputs, UnreducedLoss


@register("cispo")
@dataclass(frozen=True)
class CISPO(PolicyLoss):
    """CISPO: REINFORCE with a clipped importance weight; every token keeps its gradient.

        L = -sg(clip(r, 1 - low, 1 + high)) A log pi

    Edge: on the old policy it is REINFORCE. `high` is a distance from 1; TRL's `epsilon_high` is 1 + `high`.
    """

    low: float = 1.0
    high: float = 4.0

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        return cispo_loss(x.logp_BT, x.old_logp_BT, x.advantage_BT, x.mask_BT, self.low, self.high)
