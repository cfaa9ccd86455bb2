"""KL on tokens of low entropy."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods._groups import top_share
from vlrl.methods.term.kl import KL
from vlrl.registry import register
from vlrl.types import LossInputs, PerToken


@register("archer_kl")
@dataclass(frozen=True, kw_only=True)
class LowEntropyKL(KL):
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
