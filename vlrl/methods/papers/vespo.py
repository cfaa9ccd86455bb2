"""Gamma-weighted sequence policy optimisation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from vlrl.registry import register
from vlrl.stages import PolicyLoss
from vlrl.types import LossInputs, PerToken


@register("vespo")
@dataclass(frozen=True)
class VESPO(PolicyLoss):
    """L = -sg(phi(w)) A log pi with phi(w) = w^k e^(lambda (1 - w)), w = pi(y) / pi_old(y) of the whole sequence.

    (k, lambda) are the `positive` pair for A >= 0, else the `negative` one. The log of w is bounded to [log 1e-8, 20], each token's part to +-20.
    Paper: Shen et al. 2026, arXiv:2602.10693, eq. 11 and the released settings (2, 3) and (3, 2).  Edge: phi(1) = 1: on-policy it is REINFORCE.
    """

    positive: tuple[float, float] = (2.0, 3.0)
    negative: tuple[float, float] = (3.0, 2.0)

    def __call__(self, x: LossInputs) -> PerToken:
        log_w_B = x.log_ratio_BT.detach().clamp(-20, 20).sum(-1).clamp(math.log(1e-8), 20)
        up_BT = x.advantage_BT >= 0
        k_BT = torch.where(up_BT, self.positive[0], self.negative[0])
        lam_BT = torch.where(up_BT, self.positive[1], self.negative[1])
        phi_BT = (lam_BT + k_BT * log_w_B[:, None] - lam_BT * log_w_B.exp()[:, None]).exp()
        return PerToken(-phi_BT * x.advantage_BT * x.logp_BT, {"phi": phi_BT, "ratio": x.log_ratio_BT.exp().detach()})
