"""DHPO: hybrid policy optimisation, token ratios (PPO) and sequence ratios (GSPO) mixed after clipping each.

`dhpo` is a policy loss.

Paper: Min et al. 2026 (DHPO), arXiv:2601.05607, sec. 3.
Deviates: which end of the entropy favours tokens, and its scaling, are vlrl's reading; the ranges of the two
branches are PPO's and GSPO's. Each branch is pessimistic, as in PPO.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlrl.functional import clipped_ratio_loss, sequence_log_ratio
from vlrl.methods.common.groups import normalised
from vlrl.plugins.registry import register
from vlrl.plugins.stages import PolicyLoss
from vlrl.services.lazy import torch
from vlrl.types import LossInputs, UnreducedLoss


@register("dhpo")
@dataclass(frozen=True)
class DHPO(PolicyLoss):
    """DHPO: a mixture of PPO's token-level and GSPO's sequence-level loss.

        L = w PPO(r_t) + (1 - w) PPO(s),  PPO(r) = -min(r A, clip(r, 1 - low, 1 + high) A)

    r_t is the token ratio, s GSPO's length-normalised sequence ratio, each clipped in a range of its own.
    `mixing` "average" has w = `share`; "entropy" has w = the token's entropy scaled to 0..1 within its
    rollout (uncertain tokens get the token ratio).
    """

    mixing: Literal["average", "entropy"] = "average"
    share: float = 0.5
    token_low: float = 0.2
    token_high: float = 0.2
    sequence_low: float = 3e-4
    sequence_high: float = 4e-4

    @property
    def needs(self) -> tuple[str, ...]:
        return ("entropy",) if self.mixing == "entropy" else ()

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        token = clipped_ratio_loss(x.log_ratio_BT.exp(), x.advantage_BT, self.token_low, self.token_high)
        ratio_BT = sequence_log_ratio(x.logp_BT, x.old_logp_BT, x.mask_BT).exp().expand_as(x.logp_BT)
        sequence = clipped_ratio_loss(ratio_BT, x.advantage_BT, self.sequence_low, self.sequence_high)
        if self.mixing == "entropy":
            w_BT = normalised(x["entropy"], x.mask_BT, x.group_B)
        else:
            w_BT = torch.full_like(x.logp_BT, self.share).detach()
        metrics = {**token.metrics, "sequence_clip_fraction": sequence.metrics["clip_fraction"]}
        return UnreducedLoss(w_BT * token.loss + (1 - w_BT) * sequence.loss, metrics)
