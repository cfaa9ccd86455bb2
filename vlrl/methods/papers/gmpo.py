"""GMPO: geometric-mean policy optimisation. The loss uses the geometric mean of token ratios, each clipped on
its own.

Paper: Zhao et al. 2025 (GMPO), arXiv:2507.20673.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.functional import gmpo_loss
from vlrl.methods.core.policy_loss import SequencePolicyLoss
from vlrl.plugins.registry import register
from vlrl.types import LossInputs, UnreducedLoss


@register("gmpo")
@dataclass(frozen=True)
class GMPO(SequencePolicyLoss):
    """GMPO's policy loss: L = -A exp(mean_t min_A(log r_t, clip(log r_t, -low, high))), r_t = pi / pi_old of
    token t.

    min_A is the pessimistic choice by the sign of A: the smaller log-ratio for A > 0, the larger for A < 0.
    Paper: Zhao et al. 2025 (GMPO), arXiv:2507.20673, eq. 4 and algorithm 1; range (e^-0.4, e^0.4). Use
    loss_aggregation `sequence_mean`.
    """

    low: float = 0.4
    high: float = 0.4

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        return gmpo_loss(x.logp_BT, x.old_logp_BT, x.advantage_BT, x.mask_BT, self.low, self.high)
