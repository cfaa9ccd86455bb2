"""CPGD: policy gradient clipped in the log-ratio, with a policy drift term that keeps the policy near the old
one.

`cpgd` is the policy loss, `cpgd.policy_drift` the loss term.

Paper: Liu et al. 2025 (CPGD), arXiv:2505.12504, eq. 5-7 (loss), sec. 3.2 (drift). Of the released code only
the options were read: drift coefficient 0.01, clip range 0.2 (cap 1.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.functional import cpgd_loss
from vlrl.plugins.registry import register
from vlrl.plugins.stages import LossTerm, PolicyLoss
from vlrl.types import LossInputs, UnreducedLoss


@register("cpgd")
@dataclass(frozen=True)
class CPGD(PolicyLoss):
    """CPGD: the policy gradient clipped in the log-ratio; no ratio multiplies the gradient.

        L = -min(d A, clip(d, log(1 - eps), log(1 + eps)) A),  d = log pi - log pi_old

    Edge: on the old policy the gradient is that of REINFORCE.
    """

    eps: float = 0.2

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        return cpgd_loss(x.logp_BT, x.old_logp_BT, x.advantage_BT, x.mask_BT, self.eps)


@register("cpgd.policy_drift")
@dataclass(frozen=True, kw_only=True)
class CpgdPolicyDrift(LossTerm):
    """CPGD's policy drift: KL(pi_old || pi) on the sampled tokens, with a capped gradient.

        value r - 1 - log r,  gradient (sg(min(r, cap)) - 1) d log pi,  r = pi / pi_old

    Edge: on the old policy value and gradient are zero.
    """

    coef: float = 0.01
    cap: float = 1.2

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        d_BT = x.log_ratio_BT
        ratio_BT = d_BT.exp().detach()
        value_BT = ratio_BT - 1 - d_BT.detach()
        slope_BT = ratio_BT.clamp(max=self.cap) - 1
        return UnreducedLoss(value_BT + slope_BT * (d_BT - d_BT.detach()), {"drift": value_BT})
