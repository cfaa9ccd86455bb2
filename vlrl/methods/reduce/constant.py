"""A divisor that does not depend on lengths."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from vlrl.methods._limits import completion_limit
from vlrl.registry import register
from vlrl.stages import Denominators, Reduce
from vlrl.types import LossInputs

if TYPE_CHECKING:
    from vlrl.run import Run


@register("constant")
@dataclass(frozen=True)
class Constant(Reduce):
    """sum over all tokens / (rollouts * length): unbiased in length.

    `length` is a constant number of tokens; 0 takes the longest completion that may be sampled. 1 sums a rollout's tokens.
    Paper: Liu et al. 2025 (Dr.GRPO), arXiv:2503.20783, sec. 3.2 and listing 1 (MAX_TOKENS).
    """

    length: int = 0
    limit: int = field(init=False, default=0, repr=False, compare=False)

    def setup(self, run: Run) -> None:
        object.__setattr__(self, "limit", completion_limit(run, self.length, "reduce.length"))

    def weights(self, x: LossInputs, totals: Denominators) -> torch.Tensor:
        divisor = max(totals.sequences, 1.0) * (self.length or self.limit)
        return torch.full_like(x.length_B, 1.0 / divisor)[:, None]
