"""The policy gradient, clipped in the log-ratio.

The pull back to the policy that sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.functional import cpgd_loss
from vlrl.registry import register
from vlrl.stages import LossTerm, PolicyLoss
from vlrl.types import LossInputs, PerToken


@register("cpgd")
@dataclass(frozen=True)
class CPGD(PolicyLoss):
    """L = -min(d A, clip(d, log(1 - eps), log(1 + eps)) A) with d = log pi - log pi_old: no ratio in the gradient.

    The pull back to the old policy is term `policy_drift`.
    Paper: Liu et al. 2025, arXiv:2505.12504, eq. 5-7.  Edge: on the old policy the gradient is that of REINFORCE.
    """

    eps: float = 0.2

    def __call__(self, x: LossInputs) -> PerToken:
        return cpgd_loss(x.logp_BT, x.old_logp_BT, x.advantage_BT, x.mask_BT, self.eps)


@register("cpgd.policy_drift")
@dataclass(frozen=True, kw_only=True)
class CpgdPolicyDrift(LossTerm):
    """KL(pi_old || pi) on sampled tokens: value r - 1 - log r, gradient sg(min(r, cap)) - 1 times that of log pi, r = pi / pi_old.

    Paper: Liu et al. 2025 (CPGD), arXiv:2505.12504, sec. 3.2: the drift estimate whose gradient's ratio is truncated.
    The released options: coefficient 0.01, clip range 0.2 (cap 1.2).  Edge: on the old policy value and gradient are zero.
    """

    coef: float = 0.01
    cap: float = 1.2

    def __call__(self, x: LossInputs) -> PerToken:
        d_BT = x.log_ratio_BT
        ratio_BT = d_BT.exp().detach()
        value_BT = ratio_BT - 1 - d_BT.detach()
        slope_BT = ratio_BT.clamp(max=self.cap) - 1
        return PerToken(value_BT + slope_BT * (d_BT - d_BT.detach()), {"drift": value_BT})
