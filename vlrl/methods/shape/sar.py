"""A bonus for answers that only this question explains."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import Shape
from vlrl.types import Group, Rollout


def perplexity(rollout: Rollout, signal: str) -> float:
    """exp(-mean log p) over the trained tokens, at most e^50."""
    mask = rollout.loss_mask or [True] * len(rollout)
    logs = [logp for logp, trained in zip(rollout.signals[signal], mask, strict=True) if trained]
    return math.exp(min(50.0, -math.fsum(logs) / len(logs))) if logs else 1.0


@register("self_aligned")
@dataclass(frozen=True)
class SelfAligned(Shape):
    """r + alpha max(-1, (ppl(y) - ppl(y | x)) / ppl(y)): y's perplexity without and with the question.

    Paper: Han et al. 2025 (SAR), arXiv:2509.05489; released script: alpha 0.2 beside the verifiable reward; released code: cut at -1.
    Edge: an answer that is as likely without the question gets nothing. Units: reward.
    """

    alpha: float = 0.2
    needs = ("old_logp", "bare_logp")

    def __call__(self, group: Group) -> list[float]:
        shaped = []
        for rollout in group:
            alone, asked = perplexity(rollout, "bare_logp"), perplexity(rollout, "old_logp")
            shaped.append(rollout.reward + self.alpha * max(-1.0, (alone - asked) / alone))
        return shaped
