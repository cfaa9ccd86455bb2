"""PPO's clip where some rollouts were sampled from another prompt."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlrl.methods.surrogate.ppo_clip import clipped
from vlrl.registry import register
from vlrl.stages import Surrogate
from vlrl.types import LossInputs, PerToken


@register("crpo")
@dataclass(frozen=True)
class CalibratedClip(Surrogate):
    """-min(r A, clip(r, 1 - low, 1 + high) A), r = pi(y_t) / mu(y_t): mu is what rollouts of `sources` were sampled with, pi_old for all others.

    Paper: Guo et al. 2026 (LENS), arXiv:2601.21244, sec. 2.2, as in published notes on it: r = pi / (w mu) there; what w is to the ratio the notes do
    not say, and weight `lens` puts it on the loss. Edge: |log r| is held below 20.
    """

    low: float = 0.2
    high: float = 0.2
    sources: tuple[str, ...] = ("purified",)

    def __call__(self, x: LossInputs) -> PerToken:
        other_B1 = torch.tensor([[rollout.source in self.sources] for rollout in x.batch.rollouts], device=x.logp_BT.device)
        log_BT = torch.where(other_B1, (x.logp_BT - x.sampled_logp_BT) * x.mask_BT, x.log_ratio_BT).clamp(-20, 20)
        return clipped(log_BT.exp(), x.advantage_BT, self.low, self.high)
