"""The policy gradient, clipped in the log-ratio."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch

from vlrl.registry import register
from vlrl.stages import Surrogate
from vlrl.types import LossInputs, PerToken


@register("cpgd")
@dataclass(frozen=True)
class CPGD(Surrogate):
    """L = -min(d A, clip(d, log(1 - eps), log(1 + eps)) A) with d = log pi - log pi_old: no ratio in the gradient.

    The pull back to the old policy is term `policy_drift`.
    Paper: Liu et al. 2025, arXiv:2505.12504, eq. 5-7.  Edge: on the old policy the gradient is that of REINFORCE.
    """

    eps: float = 0.2

    def __call__(self, x: LossInputs) -> PerToken:
        d_BT = x.log_ratio_BT
        bounded_BT = d_BT.clamp(log(1 - self.eps), log(1 + self.eps))
        loss_BT = -torch.minimum(d_BT * x.advantage_BT, bounded_BT * x.advantage_BT)
        clip_BT = (bounded_BT != d_BT) & (d_BT * x.advantage_BT > bounded_BT * x.advantage_BT)
        return PerToken(loss_BT, {"clip_fraction": clip_BT.float(), "ratio": d_BT.exp().detach()})
