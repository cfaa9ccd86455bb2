"""One loss for the policy's own tokens and for tokens that somebody else chose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vlrl.methods.surrogate.ppo_clip import clipped
from vlrl.registry import register
from vlrl.stages import Surrogate
from vlrl.types import LossInputs, PerToken


@register("mixed_policy")
@dataclass(frozen=True)
class MixedPolicy(Surrogate):
    """Own tokens: L = -r A (with `clip`, as `ppo_clip`). Tokens of rollouts of `sources`: L = -f(u) A (1 - sg pi)^explore, clipped on `clip_others`.

    f(u) = u / (u + beta) (beta 0: f(u) = u), where u = pi / mu and mu, the writer's probability, is taken as `behaviour` says:
    "one": mu = 1;  "mixture": mu = (pi_old + (pi_old + 1) / 2) / 2, half the old policy, half a writer who is the old policy or uniform;
    "recorded": what the sampler noted.
    Paper: "one", beta 0.1: Yan et al. 2025 (LUFFY), arXiv:2504.14945, sec. 3.2, policy shaping; "mixture", beta 0, explore 0.5: Dong et al. 2025
    (RL-PLUS), arXiv:2508.00222, multiple importance sampling and exploration-based advantage; "recorded", beta 0.1: Zhan et al. 2025 (ExGRPO),
    arXiv:2510.02245, sec. 4.2; "recorded", beta 0, both clipped: Nath et al. 2025 (Guide), arXiv:2506.13923, whose writer is the old policy with a
    hint before its eyes. Checked against rlplus_core_alg.py, and for LUFFY and ExGRPO against copies of their released mix_src.
    Edge: without rollouts of `sources` it is the plain (clipped) surrogate. |log u| is held below 20 for "recorded".
    """

    sources: tuple[str, ...] = ("expert",)
    behaviour: Literal["one", "mixture", "recorded"] = "one"
    beta: float = 0.1
    explore: float = 0.0
    clip: bool = False
    clip_others: bool = False
    low: float = 0.2
    high: float = 0.2
    dual_clip: float = 0.0

    def __post_init__(self) -> None:
        if self.beta < 0 or self.explore < 0:
            raise ValueError(f"beta={self.beta} and explore={self.explore} must not be negative; 0 switches them off")
        if self.clip_others and self.beta:
            raise ValueError(f"clip_others clips the ratio u itself: set beta to 0, not {self.beta}")

    def relative(self, x: LossInputs) -> Tensor:
        """(B, T) u = pi / mu, with gradient."""
        if self.behaviour == "recorded":
            return ((x.logp_BT - x.sampled_logp_BT) * x.mask_BT).clamp(-20, 20).exp()
        pi_BT, old_BT = x.logp_BT.exp(), x.old_logp_BT.exp()
        return pi_BT if self.behaviour == "one" else 2 * pi_BT / (old_BT + 0.5 * (old_BT + 1))

    def __call__(self, x: LossInputs) -> PerToken:
        other_B1 = torch.tensor([[rollout.source in self.sources] for rollout in x.batch.rollouts], device=x.logp_BT.device)
        ratio_BT = x.log_ratio_BT.exp()
        own = clipped(ratio_BT, x.advantage_BT, self.low, self.high, self.dual_clip) if self.clip else PerToken(-ratio_BT * x.advantage_BT, {})
        u_BT = self.relative(x)
        f_BT = u_BT / (u_BT + self.beta) if self.beta else u_BT
        rare_BT = (1 - x.logp_BT.detach().exp()).clamp(min=0).pow(self.explore)
        others_BT = clipped(u_BT, x.advantage_BT, self.low, self.high, self.dual_clip).loss if self.clip_others else -f_BT * x.advantage_BT
        loss_BT = torch.where(other_B1, others_BT * rare_BT, own.loss)
        return PerToken(loss_BT, {**own.metrics, "ratio": ratio_BT.detach(), "off_policy": other_B1.to(x.logp_BT).expand_as(ratio_BT)})
