"""Archer: dual-token constraints, a wide clip range and no KL for high-entropy tokens, a narrow range and KL
for low-entropy ones.

`archer` is the policy loss, `archer.low_entropy_kl` the KL term; both use the same split into high- and
low-entropy tokens.

Paper: Wang et al. 2025 (Archer), arXiv:2507.15778, eq. 6-8; the released 1.5B code script has clip ranges 0.5
and 0.2, the 0.8 quantile, and KL coefficients 0.001 (low entropy) and 0 (high entropy).
Deviates: entropies of the current forward, not of the pass before (equal on-policy).
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.functional import clipped_ratio_loss
from vlrl.methods.common.groups import top_share
from vlrl.methods.core.loss_term import KL
from vlrl.plugins.registry import register
from vlrl.plugins.stages import PolicyLoss
from vlrl.services.lazy import torch
from vlrl.types import LossInputs, UnreducedLoss


@register("archer")
@dataclass(frozen=True)
class Archer(PolicyLoss):
    """Archer's clip: PPO's clipped loss with an entropy-dependent range.

        L = -min(r A, clip(r, 1 - eps_t, 1 + eps_t) A)

    eps_t is `high_entropy` for the `share` of a rollout's tokens with the highest entropy, `low_entropy` for
    its other tokens (eq. 6-7). `dual_clip` as in `ppo_clip` (10 in the released script; 0: off).
    """

    high_entropy: float = 0.5
    low_entropy: float = 0.2
    share: float = 0.2
    dual_clip: float = 0.0
    needs = ("entropy",)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        high_BT = top_share(x["entropy"], x.mask_BT, x.group_B, self.share, "rollout")
        range_BT = torch.where(high_BT, self.high_entropy, self.low_entropy).to(x.logp_BT)
        return clipped_ratio_loss(
            x.log_ratio_BT.exp(), x.advantage_BT, range_BT, range_BT, self.dual_clip or None
        )


@register("archer.low_entropy_kl")
@dataclass(frozen=True, kw_only=True)
class ArcherLowEntropyKl(KL):
    """Archer's KL: the KL to the reference, times `high_entropy_coef` on the `share` of a rollout's tokens
    with the highest entropy.

    The other tokens have factor 1 (eq. 8). Fields of the estimate are those of `kl`.
    """

    coef: float = 0.001
    high_entropy_coef: float = 0.0
    share: float = 0.2

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.ref, "entropy")

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        loss_BT, metrics = super().__call__(x)
        high_BT = top_share(x["entropy"], x.mask_BT, x.group_B, self.share, "rollout")
        return UnreducedLoss(loss_BT * (~high_BT + high_BT * self.high_entropy_coef), metrics)
