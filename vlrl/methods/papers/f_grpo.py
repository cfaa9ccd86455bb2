"""F-GRPO: a focal weight that reduces the updates of prompts the policy already solves.

Paper: Plyusov et al. 2026 (F-GRPO), arXiv:2602.06717.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.functional import group_mean
from vlrl.methods.common.correctness import correct_rollouts
from vlrl.plugins.registry import register
from vlrl.plugins.stages import TokenWeight
from vlrl.services.lazy import Tensor
from vlrl.types import LossInputs


@register("f_grpo")
@dataclass(frozen=True)
class FGrpo(TokenWeight):
    """F-GRPO's focal weight of a prompt: g = (1 - mu)^gamma, mu the share of correct rollouts in its group.

    A positive factor on the loss is the same factor on the advantages, so the weight goes with any policy
    loss.
    Paper: Plyusov et al. 2026 (F-GRPO), arXiv:2602.06717, sec. 4 (gamma 0.5-1).  Shapes: (B, 1).
    """

    gamma: float = 0.5

    def __call__(self, x: LossInputs) -> Tensor:
        success_rate_B = group_mean(correct_rollouts(x), x.group_B)
        return (1 - success_rate_B).pow(self.gamma)[:, None]
