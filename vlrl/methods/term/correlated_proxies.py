"""Chi-squared divergence from the reference."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods._groups import group_mean
from vlrl.registry import register
from vlrl.stages import Term
from vlrl.types import LossInputs, PerToken


@register("chi_squared")
@dataclass(frozen=True, kw_only=True)
class ChiSquared(Term):
    """sqrt(chi^2 + eps),  chi^2 = E_{y ~ pi}[pi(y) / pi_ref(y)] - 1, estimated over a group of rollouts; its loss on each of them.

    E is the group's mean of (pi / pi_old) * sg-free pi / pi_ref, so that its gradient is the expectation's; the sequence log-ratio to the
    reference is bounded by `clamp`.
    Paper: Laidlaw et al. 2024 (Correlated Proxies), arXiv:2403.03185, eq. 6 and sec. 5.  Deviates: the occupancy measure of one completion is its
    probability; estimate per group, negative ones count as 0.  The loss is per sequence.
    """

    coef: float = 0.01
    clamp: float = 5.0
    eps: float = 1e-2
    ref: str = "ref_logp"

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.ref,)

    def __call__(self, x: LossInputs) -> PerToken:
        to_ref_B = ((x.logp_BT - x[self.ref]) * x.mask_BT).sum(-1).clamp(-self.clamp, self.clamp)
        to_old_B = x.log_ratio_BT.sum(-1).clamp(-self.clamp, self.clamp)
        chi_B = (group_mean((to_ref_B + to_old_B).exp(), x.group_B) - 1).clamp(min=0)
        return PerToken((chi_B + self.eps).sqrt() - self.eps**0.5, {"chi_squared": chi_B.detach()})
