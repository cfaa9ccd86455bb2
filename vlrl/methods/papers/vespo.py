"""VESPO: variational sequence-level soft policy optimization, a gamma-shaped weight of the whole sequence's
importance ratio.

`vespo` is a policy loss. Paper: Shen et al. 2026 (VESPO), arXiv:2602.10693, with released settings.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.functional import vespo_loss
from vlrl.plugins.registry import register
from vlrl.plugins.stages import PolicyLoss
from vlrl.types import LossInputs, UnreducedLoss


@register("vespo")
@dataclass(frozen=True)
class VESPO(PolicyLoss):
    """VESPO's policy loss: L = -sg(phi(w)) A log pi with phi(w) = w^k e^(lambda (1 - w)), w = pi(y) /
    pi_old(y) of the whole sequence.

    (k, lambda) are the `positive` pair for A >= 0, else the `negative` one. The log of w is bounded to [log
    1e-8, 20], each token's part to +-20. Paper: Shen et al. 2026, arXiv:2602.10693, eq. 11 and the released
    settings (2, 3) and (3, 2).  Edge: phi(1) = 1: on-policy it is REINFORCE.
    """

    positive: tuple[float, float] = (2.0, 3.0)
    negative: tuple[float, float] = (3.0, 2.0)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        return vespo_loss(x.logp_BT, x.old_logp_BT, x.advantage_BT, x.mask_BT, self.positive, self.negative)
