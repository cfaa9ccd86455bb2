"""Every rollout's own mean, added up."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlrl.registry import register
from vlrl.stages import Denominators, Reduce
from vlrl.types import LossInputs


@register("only_token_mean")
@dataclass(frozen=True)
class OnlyTokenMean(Reduce):
    """sum over rollouts of the mean over a rollout's tokens: not divided by the number of rollouts.

    Paper: Yang et al. 2025 (DCPO), arXiv:2509.02333, eq. 12.  The gradient grows with the batch; scale the learning rate or rely on an adaptive
    optimizer.
    """

    def weights(self, x: LossInputs, totals: Denominators) -> torch.Tensor:
        return (1.0 / x.length_B)[:, None]
