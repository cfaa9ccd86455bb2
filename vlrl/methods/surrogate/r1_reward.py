"""StableReinforce: ratios bounded before they are taken."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vlrl.methods.surrogate.ppo_clip import clipped
from vlrl.registry import register
from vlrl.stages import Surrogate
from vlrl.types import LossInputs, PerToken


@register("pre_clip")
@dataclass(frozen=True)
class PreClip(Surrogate):
    """L = -min(r A, clip(r, 1 - low, 1 + high) A),  r = exp(clip(log pi - log pi_old, ln floor, ln ceiling)).

    Paper: R1-Reward (StableReinforce), arXiv:2505.02835, sec. 3.2 (bounds 1e-3 and 1e3 of the released code).
    Deviates: none known. Edge: on the old policy it is PPO; a token whose log ratio is outside the bounds gets no gradient. Shapes: (B, T).
    """

    low: float = 0.2
    high: float = 0.2
    floor: float = 1e-3
    ceiling: float = 1e3

    def __post_init__(self) -> None:
        if not 0 < self.floor < 1 < self.ceiling:
            raise ValueError(f"floor={self.floor}, ceiling={self.ceiling}: must lie on either side of a ratio of 1, above 0")

    def __call__(self, x: LossInputs) -> PerToken:
        ratio_BT = x.log_ratio_BT.clamp(math.log(self.floor), math.log(self.ceiling)).exp()
        return clipped(ratio_BT, x.advantage_BT, self.low, self.high)
