"""Every token counts the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlrl.registry import register
from vlrl.stages import Denominators, Reduce
from vlrl.types import LossInputs


@register("token_mean")
@dataclass(frozen=True)
class TokenMean(Reduce):
    """sum over all tokens of the step / their number.

    Paper: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 12 and sec. 3.3.
    """

    def weights(self, x: LossInputs, totals: Denominators) -> torch.Tensor:
        return torch.full_like(x.length_B, 1.0 / max(totals.tokens, 1.0))[:, None]
