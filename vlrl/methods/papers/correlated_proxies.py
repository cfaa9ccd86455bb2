"""Correlated proxies: a chi-squared divergence from the reference policy against reward hacking, in place of
KL.

`correlated_proxies` is a loss term.

Paper: Laidlaw et al. 2024 (Correlated Proxies), arXiv:2403.03185, sec. 5 and its experiment with language
models; estimator, clamp 10 and floor 1e-4 as in the released code (llm_optimization).
Deviates: the mean is over a group, not over a mini-batch of many prompts, so that the loss does not depend on
the split into micro-batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vlrl.functional import group_mean
from vlrl.plugins.registry import register
from vlrl.plugins.stages import LossTerm
from vlrl.services.lazy import Tensor, torch
from vlrl.types import LossInputs, UnreducedLoss


@register("correlated_proxies")
@dataclass(frozen=True, kw_only=True)
class CorrelatedProxies(LossTerm):
    """Chi-squared divergence from the reference policy; a loss per sequence.

        L = sqrt(max(chi^2, floor)),  chi^2 = mean over the group's rollouts of (u - 1) + (1 / u - 1),  u =
        pi(y) / pi_ref(y)

    1 / u - 1 has mean 0 under pi and lowers the variance. Above exp(`clamp`) u and 1 / u continue as their
    tangents. `ref` is the reference tensor. Edge: below `floor` there is no gradient. Shape: (B,).
    """

    coef: float = 0.01
    clamp: float = 10.0
    floor: float = 1e-4
    ref: str = "ref_logp"

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.ref,)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        log_u_B = ((x.logp_BT - x[self.ref]) * x.mask_BT).sum(-1)
        chi_B = group_mean(
            expm1_tangent(log_u_B, self.clamp) + expm1_tangent(-log_u_B, self.clamp), x.group_B
        )
        return UnreducedLoss(chi_B.clamp(min=self.floor).sqrt(), {"chi_squared": chi_B.detach()})


def expm1_tangent(log_ratio_B: Tensor, clamp: float) -> Tensor:
    """exp(x) - 1, continued as its tangent above `clamp`."""
    edge = math.exp(clamp)
    return torch.where(
        log_ratio_B >= clamp, edge * (1 + log_ratio_B - clamp) - 1, torch.expm1(log_ratio_B.clamp(max=clamp))
    )
