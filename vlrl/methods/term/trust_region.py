"""KL to the policy at the start of the step."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.term.kl import KL
from vlrl.registry import register
from vlrl.types import LossInputs, PerToken


@register("trust_region")
@dataclass(frozen=True, kw_only=True)
class TrustRegion(KL):
    """KL(pi || pi_old) per token, or its square root with `root`.

    Paper: Su et al. 2025 (TRPA), arXiv:2504.04524, eq. 13 (0.001, low-variance estimator).  Edge: zero, also in gradient, on the old policy.
    """

    coef: float = 0.001
    ref: str = "old_logp"
    root: bool = False

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("old_logp",)

    def __call__(self, x: LossInputs) -> PerToken:
        out = super().__call__(x)
        loss_BT = (out.loss + 1e-12).sqrt() if self.root else out.loss
        return PerToken(loss_BT, {"kl_old": out.metrics["kl"]})
