"""PPO's clip, and a shaped probability for rollouts that a teacher went on with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlrl.methods.surrogate.ppo_clip import clipped
from vlrl.registry import register
from vlrl.stages import Surrogate
from vlrl.types import LossInputs, PerToken


@register("advantage_aware")
@dataclass(frozen=True)
class AdvantageAware(Surrogate):
    """Rollouts of `sources`: L = -A pi / sg(pi + g), g = gamma clip(A / bound, -1, 1); all others, and tokens with A < 0 and pi < `rare`: PPO's clip.

    So tokens that the policy finds unlikely are pushed up more gently than likely ones, and down a little harder.
    Paper: RRV et al. 2025 (ThinkTuning), arXiv:2508.07616, advantage-aware shaping; checked against compute_policy_loss of the released recipe
    (gamma 0.001, bound 4, rare 0.01, dual clip 3 in steps with a teacher). Deviates: the release clamps g with its bounds the wrong way round, which
    makes it -gamma everywhere and the quotient unbounded where pi is just above gamma; g is what its formula says before that.
    Edge: pi + g below 0 becomes pi / 1.0001, above 1 pi / 0.9999, as in the release. Dual clip is on in steps without a teacher too.
    """

    sources: tuple[str, ...] = ("taught",)
    gamma: float = 0.001
    bound: float = 4.0
    rare: float = 0.01
    low: float = 0.2
    high: float = 0.2
    dual_clip: float = 3.0

    def __post_init__(self) -> None:
        if self.gamma < 0 or self.bound <= 0 or self.rare < self.gamma:
            raise ValueError(f"gamma={self.gamma} must be at least 0, bound={self.bound} above 0, rare={self.rare} at least gamma: "
                             "rarer tokens would be divided by almost nothing")  # fmt: skip

    def shaped(self, pi_BT: Tensor, advantage_BT: Tensor) -> Tensor:
        """(B, T) pi / sg(pi + g), with gradient in pi."""
        fixed_BT = pi_BT.detach()
        below_BT = fixed_BT + self.gamma * (advantage_BT / self.bound).clamp(-1, 1)
        below_BT = torch.where(below_BT < 0, fixed_BT / 1.0001, below_BT)
        below_BT = torch.where(below_BT > 1, fixed_BT / 0.9999, below_BT)
        return pi_BT / below_BT.clamp(min=torch.finfo(below_BT.dtype).tiny)

    def __call__(self, x: LossInputs) -> PerToken:
        taught_B1 = torch.tensor([[rollout.source in self.sources] for rollout in x.batch.rollouts], device=x.logp_BT.device)
        own = clipped(x.log_ratio_BT.exp(), x.advantage_BT, self.low, self.high, self.dual_clip)
        pi_BT = x.logp_BT.exp()
        shaped_BT = taught_B1 & ~((x.advantage_BT < 0) & (pi_BT.detach() < self.rare))
        loss_BT = torch.where(shaped_BT, -x.advantage_BT * self.shaped(pi_BT, x.advantage_BT), own.loss)
        return PerToken(loss_BT, {**own.metrics, "off_policy": shaped_BT.to(x.logp_BT)})
