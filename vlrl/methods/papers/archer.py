"""Wide clipping for tokens that decide, narrow for tokens that know.

KL on tokens of low entropy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlrl.functional import clipped_ratio_loss
from vlrl.methods.common.groups import top_share
from vlrl.methods.core.loss_term import KL
from vlrl.registry import register
from vlrl.stages import PolicyLoss
from vlrl.types import LossInputs, PerToken


@register("archer")
@dataclass(frozen=True)
class Archer(PolicyLoss):
    """PPO's clipped loss with range `high_entropy` for a rollout's `share` of tokens of highest entropy, `low_entropy` for the others.

    Paper: Wang et al. 2025, arXiv:2507.15778, eq. 6-8; the released 1.5B code script has 0.5, 0.2 and the 0.8 quantile. The KL side is term
    `archer_kl`.
    Deviates: entropies of the current forward, not of the pass before (equal on-policy).
    """

    high_entropy: float = 0.5
    low_entropy: float = 0.2
    share: float = 0.2
    needs = ("entropy",)

    def __call__(self, x: LossInputs) -> PerToken:
        decides_BT = top_share(x["entropy"], x.mask_BT, x.group_B, self.share, "rollout")
        range_BT = torch.where(decides_BT, self.high_entropy, self.low_entropy).to(x.logp_BT)
        return clipped_ratio_loss(x.log_ratio_BT.exp(), x.advantage_BT, range_BT, range_BT)


@register("archer.low_entropy_kl")
@dataclass(frozen=True, kw_only=True)
class ArcherLowEntropyKl(KL):
    """KL to the reference, times `high_entropy_coef` on a rollout's `share` of tokens of highest entropy.

    Paper: Wang et al. 2025 (Archer), arXiv:2507.15778, eq. 8; the released 1.5B code script has 0.001 on low-entropy tokens and 0 on the others.
    """

    coef: float = 0.001
    high_entropy_coef: float = 0.0
    share: float = 0.2

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.ref, "entropy")

    def __call__(self, x: LossInputs) -> PerToken:
        loss_BT, metrics = super().__call__(x)
        decides_BT = top_share(x["entropy"], x.mask_BT, x.group_B, self.share, "rollout")
        return PerToken(loss_BT * (~decides_BT + decides_BT * self.high_entropy_coef), metrics)
