"""A bonus for answers that only this question explains.

Log-probs of the same completion without the question.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from vlrl.registry import register
from vlrl.stages import AuxTensor, RewardShaping
from vlrl.types import Group, Prompt, Rollout, TokenBatch


def perplexity(rollout: Rollout, signal: str) -> float:
    """exp(-mean log p) over the trained tokens, at most e^50."""
    mask = rollout.loss_mask or [True] * len(rollout)
    logs = [logp for logp, trained in zip(rollout.signals[signal], mask, strict=True) if trained]
    return math.exp(min(50.0, -math.fsum(logs) / len(logs))) if logs else 1.0


@register("sar")
@dataclass(frozen=True)
class Sar(RewardShaping):
    """r + alpha max(-1, (ppl(y) - ppl(y | x)) / ppl(y)): y's perplexity without and with the question.

    Paper: Han et al. 2025 (SAR), arXiv:2509.05489; released script: alpha 0.2 beside the verifiable reward; released code: cut at -1.
    Edge: an answer that is as likely without the question gets nothing. Units: reward.
    """

    alpha: float = 0.2
    needs = ("old_logp", "sar.unconditional_logp")

    def __call__(self, group: Group) -> list[float]:
        shaped = []
        for rollout in group:
            alone, asked = perplexity(rollout, "sar.unconditional_logp"), perplexity(rollout, "old_logp")
            shaped.append(rollout.reward + self.alpha * max(-1.0, (alone - asked) / alone))
        return shaped


def bare(prompt: Prompt) -> Prompt:
    """The prompt with nothing asked: one empty user turn, no pictures; the opening of the answer stays."""
    return replace(prompt, messages=({"role": "user", "content": [{"type": "text", "text": ""}]},), images=(), videos=(), train=None)


@register("sar.unconditional_logp")
@dataclass(frozen=True, kw_only=True)
class SarUnconditionalLogp(AuxTensor):
    """log pi(y_t | y_<t), in nats: the policy at the start of the step, asked nothing.

    Paper: Han et al. 2025 (SAR), arXiv:2509.05489 (perplexity of the answer alone).  Deviates: the chat template stays, around an empty turn.
    Shapes: (B, T), no gradient.
    """

    at_start = True

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        return policy.forward(replace(batch, prompts=[bare(prompt) for prompt in batch.prompts]))["logp"]
