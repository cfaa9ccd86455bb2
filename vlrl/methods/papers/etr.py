"""ETR: elastic trust regions, clip ranges that grow with the advantage and with the group's variance.

`etr` is a policy loss.

Paper: Zhang et al. 2026 (ETR), arXiv:2601.03723: the range grows with |A| (micro) and with the group's
variance (macro). Deviates: the paper's functions were not available; tanh and 4 p (1 - p) are vlrl's.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.functional import clipped_ratio_loss, group_mean
from vlrl.methods.common.correctness import correct_rollouts
from vlrl.plugins.registry import register
from vlrl.plugins.stages import PolicyLoss
from vlrl.types import LossInputs, UnreducedLoss


@register("etr")
@dataclass(frozen=True)
class ETR(PolicyLoss):
    """Elastic trust region: PPO's clipped loss with a range per token.

        range = eps (1 + micro tanh|A|) (1 + macro 4 p (1 - p)),  eps = `low` below 1 and `high` above

    p is the share of correct rollouts in the group. Edge: micro = macro = 0 is PPO.
    """

    low: float = 0.2
    high: float = 0.2
    micro: float = 0.5
    macro: float = 0.5

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        p_B = group_mean(correct_rollouts(x), x.group_B)
        stretch_BT = (1 + self.micro * x.advantage_BT.abs().tanh()) * (1 + self.macro * 4 * p_B * (1 - p_B))[
            :, None
        ]
        out = clipped_ratio_loss(
            x.log_ratio_BT.exp(),
            x.advantage_BT,
            (self.low * stretch_BT).clamp(max=1.0),
            self.high * stretch_BT,
        )
        return UnreducedLoss(out.loss, {**out.metrics, "stretch": stretch_BT})
