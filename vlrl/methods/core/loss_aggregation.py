"""A divisor that does not depend on lengths.

Every rollout counts the same.

Every token counts the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from vlrl import functional
from vlrl.methods.common.limits import completion_limit
from vlrl.registry import register
from vlrl.stages import Denominators, LossAggregation
from vlrl.types import LossInputs

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("constant")
@dataclass(frozen=True)
class Constant(LossAggregation):
    """sum over all tokens / (rollouts * length): unbiased in length.

    `length` is a constant number of tokens; 0 takes the longest completion that may be sampled. 1 sums a rollout's tokens.
    Paper: Liu et al. 2025 (Dr.GRPO), arXiv:2503.20783, sec. 3.2 and listing 1 (MAX_TOKENS).
    """

    length: int = 0
    limit: int = field(init=False, default=0, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "limit", completion_limit(run, self.length, "reduce.length"))

    def weights(self, x: LossInputs, totals: Denominators) -> torch.Tensor:
        return functional.aggregation_weights(x.mask_BT, "constant", sequences=totals.sequences, length=self.length or self.limit)


@register("sequence_mean")
@dataclass(frozen=True)
class SequenceMean(LossAggregation):
    """mean over rollouts of the mean over a rollout's tokens. Tokens of long rollouts count less: GRPO's length bias.

    Paper: Shao et al. 2024, arXiv:2402.03300, eq. 3.
    """

    def weights(self, x: LossInputs, totals: Denominators) -> torch.Tensor:
        return functional.aggregation_weights(x.mask_BT, "sequence_mean", sequences=totals.sequences)


@register("token_mean")
@dataclass(frozen=True)
class TokenMean(LossAggregation):
    """sum over all tokens of the step / their number.

    Paper: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 12 and sec. 3.3.
    """

    def weights(self, x: LossInputs, totals: Denominators) -> torch.Tensor:
        return functional.aggregation_weights(x.mask_BT, "token_mean", tokens=totals.tokens)
