"""Log-probs of the same completion without the question."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from vlrl.registry import register
from vlrl.stages import Field
from vlrl.types import Prompt, TokenBatch


def bare(prompt: Prompt) -> Prompt:
    """The prompt with nothing asked: one empty user turn, no pictures; the opening of the answer stays."""
    return replace(prompt, messages=({"role": "user", "content": [{"type": "text", "text": ""}]},), images=(), videos=(), train=None)


@register("bare_logp")
@dataclass(frozen=True, kw_only=True)
class BareLogp(Field):
    """log pi(y_t | y_<t), in nats: the policy at the start of the step, asked nothing.

    Paper: Han et al. 2025 (SAR), arXiv:2509.05489 (perplexity of the answer alone).  Deviates: the chat template stays, around an empty turn.
    Shapes: (B, T), no gradient.
    """

    at_start = True

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        return policy.forward(replace(batch, prompts=[bare(prompt) for prompt in batch.prompts]))["logp"]
