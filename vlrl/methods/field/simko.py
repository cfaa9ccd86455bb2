"""Log-probs of the likeliest tokens."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vlrl.registry import register
from vlrl.stages import Field


@register("topk_logp")
@dataclass(frozen=True, kw_only=True)
class TopKLogp(Field):
    """The `k` largest log pi(v | s_t), in falling order (nats).

    Paper: Peng et al. 2025 (SimKO), arXiv:2510.14807, sec. 4.  Shapes: (N, V) to (N, k), with gradient.  Edge: k is at most the vocabulary.
    """

    k: int = 3
    in_forward = True

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        return logits_NV.topk(min(self.k, logits_NV.shape[-1]), -1).values - logits_NV.logsumexp(-1, keepdim=True)
