"""Vocabulary means of log-probs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vlrl.registry import register
from vlrl.stages import Field
from vlrl.types import TokenBatch


@register("vocab_mean")
@dataclass(frozen=True, kw_only=True)
class VocabMean(Field):
    """mean_v log pi(v | s_t): what the uniform policy expects of the log-probs (nats).

    Paper: He et al. 2025 (ROVER), arXiv:2509.24981, sec. 4.  Shapes: (N, V) to (N,), with gradient.
    """

    in_forward = True

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        return logits_NV.mean(-1) - logits_NV.logsumexp(-1)


@register("old_vocab_mean")
@dataclass(frozen=True, kw_only=True)
class OldVocabMean(Field):
    """mean_v log pi_old(v | s_t), of the policy at the start of the step.

    Paper: He et al. 2025 (ROVER), arXiv:2509.24981, sec. 4.  Shapes: (B, T).
    """

    at_start = True

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        return policy.forward(batch, [VocabMean()])["vocab_mean"]
