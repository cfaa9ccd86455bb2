"""Clip bounds that widen for rare tokens."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.surrogate.ppo_clip import clipped
from vlrl.registry import register
from vlrl.stages import Surrogate
from vlrl.types import LossInputs, PerToken


@register("dcpo")
@dataclass(frozen=True)
class DCPO(Surrogate):
    """PPO's clipped loss with bounds from |(r - 1) r q| <= eps, q = pi_old of the token: rare tokens may move further.

    0.5 + 0.5 sqrt(max(1 - 4 low / q, 0)) <= r <= min(0.5 + 0.5 sqrt(1 + 4 high / q), r_max).

    Paper: Yang et al. 2025, arXiv:2509.02333, eq. 6-8 (low 0.16, high 0.2, r_max 10).
    Edge: a token with q below 4 low is not bounded below 0.5.
    """

    low: float = 0.16
    high: float = 0.2
    r_max: float = 10.0

    def __call__(self, x: LossInputs) -> PerToken:
        q_BT = x.old_logp_BT.exp().clamp(min=1e-12)
        lower_BT = 0.5 + 0.5 * (1 - 4 * self.low / q_BT).clamp(min=0).sqrt()
        upper_BT = (0.5 + 0.5 * (1 + 4 * self.high / q_BT).sqrt()).clamp(max=self.r_max)
        return clipped(x.log_ratio_BT.exp(), x.advantage_BT, 1 - lower_BT, upper_BT - 1)
