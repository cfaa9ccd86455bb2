"""Less weight for prompts that are solved already."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vlrl.functional import group_mean
from vlrl.registry import register
from vlrl.stages import TokenWeight
from vlrl.types import LossInputs


@register("f_grpo")
@dataclass(frozen=True)
class FGrpo(TokenWeight):
    """g = (1 - share of the group's rewards above `threshold`)^gamma.

    A positive factor on the loss is the same factor on the advantages, so it goes with any surrogate.
    Paper: Plyusov et al. 2026 (F-GRPO), arXiv:2602.06717, sec. 4 (gamma 0.5-1).  Shapes: (B, 1).
    """

    gamma: float = 0.5
    threshold: float = 0.5

    def __call__(self, x: LossInputs) -> Tensor:
        share_B = group_mean((x.reward_B > self.threshold).to(x.logp_BT), x.group_B)
        return (1 - share_B).pow(self.gamma)[:, None]
