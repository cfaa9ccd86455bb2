"""The policy's entropy at each completion token."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vlrl.registry import register
from vlrl.stages import Field


@register("entropy")
@dataclass(frozen=True, kw_only=True)
class Entropy(Field):
    """H_t = -sum_v p_v log p_v, in nats, of the distribution that token t was drawn from.

    Paper: Shannon 1948; as a signal in RLVR: arXiv:2505.22617, eq. 2. Deviations: temperature-scaled, as sampled.
    Edge: a distribution with a single possible token has entropy 0. Shapes: logits (N, V) to (N,), with gradient.
    """

    in_forward = True

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        logp_NV = logits_NV.log_softmax(-1)
        probability_NV = logp_NV.exp()
        # 0 * -inf is 0 here: a token that cannot be drawn adds nothing
        return -(probability_NV * logp_NV.masked_fill(probability_NV == 0, 0.0)).sum(-1)
