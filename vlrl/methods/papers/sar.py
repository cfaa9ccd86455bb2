"""SAR: self-aligned reward, a bonus for completions that are much more likely with the question than without
it.

    sar.unconditional_logp   auxiliary tensor: log-probs of the completion without the question
    sar                      reward shaping: adds the relative drop of the perplexity that the question causes

Paper: Han et al. 2025 (SAR), arXiv:2509.05489, with released script and code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vlrl.plugins.registry import register
from vlrl.plugins.stages import AuxTensor, RewardShaping
from vlrl.plugins.views import PolicyView
from vlrl.services.lazy import Tensor
from vlrl.types import Group, Prompt, Rollout, TokenBatch


@register("sar.unconditional_logp")
@dataclass(frozen=True, kw_only=True)
class SarUnconditionalLogp(AuxTensor):
    """SAR's unconditional log-probs: log pi(y_t | y_<t), in nats, by the policy at the start of the step,
    without the question.

    Paper: Han et al. 2025 (SAR), arXiv:2509.05489 (perplexity of the answer alone). Deviates: the chat
    template stays, around the system message and an empty turn, as in the release (create_ans_only_batch).
    Shapes: (B, T), no gradient.
    """

    at_start = True

    def __call__(self, policy: PolicyView, batch: TokenBatch) -> Tensor:
        return policy.forward(replace(batch, prompts=[without_question(prompt) for prompt in batch.prompts]))[
            "logp"
        ]


def without_question(prompt: Prompt) -> Prompt:
    """The prompt with one empty user turn and no media; the system message and the answer's prefix stay."""
    kept = tuple(message for message in prompt.messages if message["role"] == "system")
    return replace(
        prompt,
        messages=(*kept, {"role": "user", "content": [{"type": "text", "text": ""}]}),
        images=(),
        videos=(),
        train=None,
    )


@register("sar")
@dataclass(frozen=True)
class Sar(RewardShaping):
    """SAR: r + alpha max(-1, (ppl(y) - ppl(y | x)) / ppl(y)), with the perplexity of completion y without and
    with the question x.

    Paper: Han et al. 2025 (SAR), arXiv:2509.05489; released script: alpha 0.2 beside the verifiable reward;
    released code: cut at -1. Edge: the bonus is 0 for a completion that is as likely without the question.
    Units: reward.
    """

    alpha: float = 0.2
    needs = ("old_logp", "sar.unconditional_logp")

    def __call__(self, group: Group) -> list[float]:
        shaped = []
        for rollout in group:
            unconditional, conditional = (
                perplexity(rollout, "sar.unconditional_logp"),
                perplexity(rollout, "old_logp"),
            )
            shaped.append(
                rollout.reward + self.alpha * max(-1.0, (unconditional - conditional) / unconditional)
            )
        return shaped


def perplexity(rollout: Rollout, signal: str) -> float:
    """exp(-mean log p) over the trained tokens, at most e^50; 1 without trained tokens."""
    logps = [
        logp for logp, trained in zip(rollout.signals[signal], rollout.trained_mask, strict=True) if trained
    ]
    return math.exp(min(50.0, -math.fsum(logps) / len(logps))) if logps else 1.0
