"""Archer: dual-token constraints, a wide clip range and no KL for high-entropy tokens, a narrow range and KL
for low-entropy ones.

`archer` is the policy loss, `archer.low_entropy_kl` the KL term. Both split tokens alike: a token is of high
entropy above the (1 - `share`) quantile of its rollout, which lies between two tokens, so that ceil(share
(n - 1)) of n are.

Paper: Wang et al. 2025 (Archer), arXiv:2507.15778, eq. 6-8; wizard-III/ArcherCodeR at 8a1785b,
verl/workers/actor/dp_actor.py; its 1.5B code script has clip ranges 0.5 and 0.2, the 0.8 quantile, and KL
coefficients 0.001 (low entropy) and 0 (high).
Deviates: entropies of the current forward, as in the release, not of the pass before (equal on-policy).
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.functional import clipped_ratio_loss
from vlrl.methods.common.groups import above_quantile
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

    eps_t is `high_entropy` for the tokens of high entropy, `low_entropy` for the others (eq. 6-7).
    `dual_clip` as in `ppo_clip` (10 in the released script; 0: off).
    """

    high_entropy: float = 0.5
    low_entropy: float = 0.2
    share: float = 0.2
    dual_clip: float = 0.0
    needs = ("entropy",)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        high_BT = above_quantile(x["entropy"], x.mask_BT, self.share)
        range_BT = torch.where(high_BT, self.high_entropy, self.low_entropy).to(x.logp_BT)
        return clipped_ratio_loss(
            x.log_ratio_BT.exp(), x.advantage_BT, range_BT, range_BT, self.dual_clip or None
        )


@register("archer.low_entropy_kl")
@dataclass(frozen=True, kw_only=True)
class ArcherLowEntropyKl(KL):
    """Archer's KL to the reference: the mean over a rollout's tokens of low entropy, plus
    `high_entropy_coef` times that over its tokens of high entropy.

        L_t = KL_t n / n_low for low entropy, high_entropy_coef KL_t n / n_high for high

    Each kind has its own mean, as in the release, so that under loss_aggregation sequence_mean a rollout's KL
    does not depend on the size of the kinds (eq. 8 divides by all n tokens). Fields of the estimate are those
    of `kl`.
    """

    coef: float = 0.001
    high_entropy_coef: float = 0.0
    share: float = 0.2

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.ref, "entropy")

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        loss_BT, metrics = super().__call__(x)
        high_BT = above_quantile(x["entropy"], x.mask_BT, self.share)
        low_BT = (x.mask_BT > 0) & ~high_BT
        count_B1 = (x.mask_BT > 0).sum(-1, keepdim=True)
        weight_BT = sum(
            factor * kind_BT * count_B1 / kind_BT.sum(-1, keepdim=True).clamp(min=1)
            for factor, kind_BT in ((1.0, low_BT), (self.high_entropy_coef, high_BT))
        )
        return UnreducedLoss(loss_BT * weight_BT, metrics)
