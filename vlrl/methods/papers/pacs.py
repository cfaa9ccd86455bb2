"""PACS: RLVR as supervised learning; the outcome is a label, predicted from a group-relative log-ratio, which
makes the policy an implicit critic.

`pacs` is a policy loss per rollout; the advantage is not read.

Paper: Li et al. 2025 (PACS), arXiv:2509.02522, eq. 5-8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlrl.functional import group_mean, group_sum
from vlrl.methods.common.correctness import correct_rollouts
from vlrl.methods.core.policy_loss import SequencePolicyLoss
from vlrl.plugins.registry import register
from vlrl.services.lazy import nn, torch
from vlrl.types import LossInputs, UnreducedLoss


@register("pacs")
@dataclass(frozen=True)
class PACS(SequencePolicyLoss):
    """PACS's loss: cross-entropy between sigmoid(psi_i) and whether rollout i is correct.

        L_i = BCE(sigmoid(psi_i), [i is correct]),  psi_i = p_i - mean of the group's other p,  p_i = beta
        sum_t log(pi / pi_old)

    `score` "grpo": psi_i = (p_i - mean p) / (std p + eps). `length_normalised`: p_i has the mean over tokens
    in place of the sum. `balance` gives the correct and the wrong rollouts of a group the same total weight
    (n / (2 n_class) each); a group of one kind keeps weight 1, as in the release (pacs_core_algos.py:59-71).
    Paper: Li et al. 2025, arXiv:2509.02522, eq. 5-8. Edge: psi couples the rollouts of a group, and has a
    gradient also where all rewards are equal; a rollout alone has psi = p. Shapes: (B,).
    """

    beta: float = 1.0
    score: Literal["rloo", "grpo"] = "rloo"
    length_normalised: bool = False
    balance: bool = False
    zero_without_advantage = False

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        proxy_B = self.beta * x.log_ratio_BT.sum(-1)
        if self.length_normalised:
            proxy_B = proxy_B / x.length_B
        n_B = group_sum(torch.ones_like(proxy_B), x.group_B)
        centred_B = proxy_B - group_mean(proxy_B, x.group_B)
        if self.score == "rloo":
            psi_B = torch.where(n_B > 1, centred_B * n_B / (n_B - 1).clamp(min=1), proxy_B)
        else:
            std_B = (group_sum(centred_B.square(), x.group_B) / (n_B - 1).clamp(min=1) + 1e-12).sqrt()
            psi_B = centred_B / (std_B + 1e-6)
        correct_B = correct_rollouts(x).to(proxy_B)
        loss_B = nn.functional.binary_cross_entropy_with_logits(psi_B, correct_B, reduction="none")
        if self.balance:
            correct_share_B = group_mean(correct_B, x.group_B)
            class_share_B = torch.where(correct_B > 0, correct_share_B, 1 - correct_share_B)
            loss_B = torch.where(class_share_B < 1, loss_B / (2 * class_share_B), loss_B)
        return UnreducedLoss(loss_B, {"psi": psi_B.detach(), "ratio": x.log_ratio_BT.exp().detach()})
