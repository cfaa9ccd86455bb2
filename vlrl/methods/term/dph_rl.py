"""Divergences that cover what the base model could do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from vlrl.registry import ConfigError, register
from vlrl.stages import Term
from vlrl.types import LossInputs, PerToken

if TYPE_CHECKING:
    from vlrl.run import Run


@register("f_divergence")
@dataclass(frozen=True, kw_only=True)
class FDivergence(Term):
    """D_f(pi || pi_base) = E_base[f(u)], u = pi / pi_base, on the tokens of rollouts of `source` (their own sampler's log-probs are pi_base).

    forward KL f(u) = -log u;  JS f(u) = u log u - (u + 1) log((u + 1) / 2);  alpha f(u) = (u^(1-a) - (1-a) u - a) / (a (a - 1)).

    Paper: Li et al. 2025 (DPH-RL), arXiv:2509.07430, eq. 4-6; coefficients 0.01-0.05 (forward KL) and 0.05-0.2 (JS) in the released scripts.
    No reference model runs. log u is held in +-20.  Edge: no such rollouts: zero; alpha must not be 0 or 1.
    """

    coef: float = 0.02
    kind: Literal["forward_kl", "js", "alpha"] = "forward_kl"
    alpha: float = 0.5
    source: str = "base"

    def __post_init__(self) -> None:
        if self.kind == "alpha" and self.alpha in (0.0, 1.0):
            raise ValueError(f"alpha={self.alpha}: the divergence is defined there only as a limit; use kind forward_kl")

    def check(self, run: Run) -> None:
        if self.source == "base" and getattr(run.replay, "name", "") != "dph_rl":
            raise ConfigError('terms: f_divergence learns from rollouts of source "base", which nothing makes here; add replay: {name: dph_rl}')

    def f(self, log_u: torch.Tensor) -> torch.Tensor:
        """The generator at u = exp(log_u)."""
        u, a = log_u.exp(), self.alpha
        if self.kind == "forward_kl":
            return -log_u
        if self.kind == "js":
            return u * log_u - (u + 1) * ((u + 1) / 2).log()
        return (u.pow(1 - a) - (1 - a) * u - a) / (a * (a - 1))

    def __call__(self, x: LossInputs) -> PerToken:
        keep_B = torch.tensor([rollout.source == self.source for rollout in x.batch.rollouts], device=x.logp_BT.device)
        log_u_BT = ((x.logp_BT - x.sampled_logp_BT) * x.mask_BT * keep_B[:, None]).clamp(-20, 20)
        value_BT = torch.where(keep_B[:, None], self.f(log_u_BT), torch.zeros_like(log_u_BT))
        return PerToken(value_BT, {"f_divergence": value_BT.detach()})
