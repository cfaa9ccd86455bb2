"""NFT: negative-aware fine-tuning, a supervised loss on correct rollouts and, through an implicit negative
policy, on wrong ones.

Paper: Chen et al. 2025 (NFT), arXiv:2505.18116, with released code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlrl.functional import group_mean
from vlrl.methods.common.correctness import correct_rollouts
from vlrl.methods.core.policy_loss import SequencePolicyLoss
from vlrl.plugins.registry import register
from vlrl.services.lazy import torch
from vlrl.types import LossInputs, PerToken


@register("nft")
@dataclass(frozen=True)
class NFT(SequencePolicyLoss):
    """NFT's loss. Correct rollouts: -log R.  Wrong ones: -`negative` log max(eps, (1 - q R) / (1 - q)).

    R = pi / pi_old per token, q the prompt's success rate in its group, clamped to [0.02, 0.98]. The max is
    straight-through: it keeps the gradient of (1 - q R) / (1 - q). A prompt has the weight 1 - q
    (`prompt_weight` "linear") or sqrt((1 - q) / q) ("sqrt"), 0 where all are alike. `negative` 0 is rejection
    fine-tuning. The advantage is not read. Paper: Chen et al. 2025 (NFT), arXiv:2505.18116, eq. 8-10; the
    released 7B script has eps 1. Edge: on-policy, correct tokens have gradient -(1 - q), wrong ones +q:
    GRPO's without the std.
    """

    eps: float = 1.0
    negative: float = 1.0
    prompt_weight: Literal["linear", "sqrt"] = "linear"

    def __call__(self, x: LossInputs) -> PerToken:
        correct_B = correct_rollouts(x)
        share_B = group_mean(correct_B, x.group_B)
        q_B = share_B.clamp(0.02, 0.98)
        weight_B = 1 - q_B if self.prompt_weight == "linear" else ((1 - q_B) / q_B).sqrt()
        weight_B = weight_B * ((share_B > 0) & (share_B < 1))
        log_ratio_BT = x.log_ratio_BT
        implicit_BT = (1 - q_B[:, None] * log_ratio_BT.exp()) / (1 - q_B[:, None])
        floored_BT = implicit_BT + (implicit_BT.clamp(min=self.eps) - implicit_BT).detach()
        loss_BT = torch.where(correct_B[:, None] > 0, -log_ratio_BT, -self.negative * floored_BT.log())
        return PerToken(weight_B[:, None] * loss_BT, {"ratio": log_ratio_BT.exp().detach()})
