"""Every rollout counts the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlrl.registry import register
from vlrl.stages import Denominators, Reduce
from vlrl.types import LossInputs


@register("sequence_mean")
@dataclass(frozen=True)
class SequenceMean(Reduce):
    """mean over rollouts of the mean over a rollout's tokens. Tokens of long rollouts count less: GRPO's length bias.

    Paper: Shao et al. 2024, arXiv:2402.03300, eq. 3.
    """

    def weights(self, x: LossInputs, totals: Denominators) -> torch.Tensor:
        return (1.0 / (x.length_B * max(totals.sequences, 1.0)))[:, None]
