"""Supervised learning with an implicit critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from vlrl.functional import group_mean, group_sum
from vlrl.methods.core.policy_loss import WholeRollout
from vlrl.registry import register
from vlrl.types import LossInputs, PerToken


@register("pacs")
@dataclass(frozen=True)
class PACS(WholeRollout):
    """L_i = BCE(sigmoid(psi_i), [r_i > threshold]),  psi_i = p_i - mean of the group's other p,  p_i = beta * sum_t log(pi / pi_old).

    `score` "grpo" takes psi_i = (p_i - mean p) / (std p + eps) instead; `length_normalised` the mean over tokens instead of the sum;
    `balance` weighs rights and wrongs of a group equally (n / (2 n_class)).
    Paper: Li et al. 2025, arXiv:2509.02522, eq. 5-8; the loss is per sequence, the advantage is not read.
    Edge: psi couples the rollouts of a group, and has gradient also where all rewards are equal; a rollout alone has psi = p.
    """

    beta: float = 1.0
    score: Literal["rloo", "grpo"] = "rloo"
    length_normalised: bool = False
    balance: bool = False
    threshold: float = 0.5
    zero_without_advantage = False

    def __call__(self, x: LossInputs) -> PerToken:
        proxy_B = self.beta * x.log_ratio_BT.sum(-1)
        if self.length_normalised:
            proxy_B = proxy_B / x.length_B
        n_B = group_sum(torch.ones_like(proxy_B), x.group_B)
        centred_B = proxy_B - group_mean(proxy_B, x.group_B)
        if self.score == "rloo":
            psi_B = torch.where(n_B > 1, centred_B * n_B / (n_B - 1).clamp(min=1), proxy_B)
        else:
            spread_B = (group_sum(centred_B.square(), x.group_B) / (n_B - 1).clamp(min=1) + 1e-12).sqrt()
            psi_B = centred_B / (spread_B + 1e-6)
        right_B = (x.reward_B > self.threshold).to(proxy_B)
        loss_B = binary_cross_entropy_with_logits(psi_B, right_B, reduction="none")
        if self.balance:
            share_B = group_mean(right_B, x.group_B)
            own_B = torch.where(right_B > 0, share_B, 1 - share_B)
            loss_B = loss_B / (2 * own_B)
        return PerToken(loss_B, {"psi": psi_B.detach(), "ratio": x.log_ratio_BT.exp().detach()})
