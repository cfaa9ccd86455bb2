"""Negative-aware fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from vlrl.functional import group_mean
from vlrl.methods.core.policy_loss import WholeRollout
from vlrl.registry import register
from vlrl.types import LossInputs, PerToken


@register("nft")
@dataclass(frozen=True)
class NFT(WholeRollout):
    """Right: -log R.  Wrong: -`negative` log max(eps, (1 - q R) / (1 - q)).  R = pi / pi_old per token, q the prompt's accuracy in its group.

    The max keeps the gradient of what it bounds (straight through). A prompt weighs 1 - q, or sqrt((1 - q) / q); q is held in [0.02, 0.98]; groups
    that are all right or all wrong weigh nothing. `negative` 0 is rejection fine-tuning. The advantage is not read.
    Paper: Chen et al. 2025, arXiv:2505.18116, eq. 8-10; the released 7B script has eps 1.
    Edge: on-policy, right tokens have gradient -(1 - q), wrong ones +q: GRPO's without std.
    """

    eps: float = 1.0
    negative: float = 1.0
    prompt_weight: Literal["linear", "sqrt"] = "linear"
    threshold: float = 0.5
    zero_without_advantage = True  # groups of equal rewards weigh nothing here either

    def __call__(self, x: LossInputs) -> PerToken:
        right_B = x.reward_B > self.threshold
        share_B = group_mean(right_B.to(x.logp_BT), x.group_B)
        q_B = share_B.clamp(0.02, 0.98)
        weight_B = 1 - q_B if self.prompt_weight == "linear" else ((1 - q_B) / q_B).sqrt()
        weight_B = weight_B * ((share_B > 0) & (share_B < 1))
        log_ratio_BT = x.log_ratio_BT
        implicit_BT = (1 - q_B[:, None] * log_ratio_BT.exp()) / (1 - q_B[:, None])
        floored_BT = implicit_BT + (implicit_BT.clamp(min=self.eps) - implicit_BT).detach()
        loss_BT = torch.where(right_B[:, None], -log_ratio_BT, -self.negative * floored_BT.log())
        return PerToken(weight_B[:, None] * loss_BT, {"ratio": log_ratio_BT.exp().detach()})
