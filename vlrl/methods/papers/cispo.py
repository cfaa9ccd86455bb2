"""Clipped importance weights instead of clipped updates."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.functional import cispo_loss
from vlrl.registry import register
from vlrl.stages import PolicyLoss
from vlrl.types import LossInputs, PerToken


@register("cispo")
@dataclass(frozen=True)
class CISPO(PolicyLoss):
    """L = -sg(clip(r, 1 - low, 1 + high)) A log pi: every token keeps its gradient, only its weight is bounded.

    Paper: MiniMax 2025, arXiv:2506.13585, eq. 4-5. The paper tunes only the upper bound and lifts the lower one (`low` 1).
    Edge: on the old policy it is REINFORCE. `high` is a distance from 1; TRL's `epsilon_high` is 1 + `high`.
    """

    low: float = 1.0
    high: float = 4.0

    def __call__(self, x: LossInputs) -> PerToken:
        return cispo_loss(x.logp_BT, x.old_logp_BT, x.advantage_BT, x.mask_BT, self.low, self.high)
