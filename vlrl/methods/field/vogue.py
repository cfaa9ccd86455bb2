"""Log-probs of the same completion on the picture without noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from vlrl.methods.strategy.vogue import clean
from vlrl.registry import register
from vlrl.stages import Field
from vlrl.types import TokenBatch


@register("clean_logp")
@dataclass(frozen=True, kw_only=True)
class CleanLogp(Field):
    """log pi(y_t | x, y_<t), in nats, with the pictures of x as they were before strategy `vogue` made them noisy.

    Paper: Liu et al. 2025 (VOGUE), arXiv:2510.01444 (the raw branch's forward pass). Of the policy at the start of the step, without gradient.
    Edge: a prompt without noise gives the log-probs themselves. Shapes: (B, T).
    """

    at_start = True

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        return policy.forward(replace(batch, prompts=[clean(prompt) for prompt in batch.prompts]))["logp"]
