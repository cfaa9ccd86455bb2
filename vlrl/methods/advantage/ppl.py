"""Advantages shaped by perplexity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.advantage.grpo import GRPO, mean, std
from vlrl.registry import register
from vlrl.types import Group, Rollout


def surprise(rollout: Rollout) -> float:
    """Log-perplexity of a rollout: the mean of -log pi over its tokens (nats)."""
    logp = rollout.signals.get("old_logp") or rollout.logp
    return -math.fsum(logp) / max(len(logp), 1)


@register("ppl")
@dataclass(frozen=True)
class PerplexityShaped(GRPO):
    """A_i = GRPO_i * (1 - alpha w_i),  w_i = (log ppl_i - mean) / std over the rollouts of the step.

    Favours rollouts that the policy finds likely; the factor is kept at or above 0.
    Paper: Deng et al. 2025, arXiv:2508.02260, sec. 5.1.  Deviates: alpha is vlrl's (the formula is from memory of the paper).
    Edge: equal perplexities change nothing. The late-token bonus is credit `late_bonus`.
    """

    alpha: float = 0.1

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        logs = [[surprise(rollout) for rollout in group] for group in groups]
        flat = [value for row in logs for value in row]
        centre, spread = mean(flat), std(flat, unbiased=False)
        base = super().__call__(groups)
        if spread < 1e-12:
            return base
        return [[a * max(1 - self.alpha * (v - centre) / spread, 0.0) for a, v in zip(row, ppl)] for row, ppl in zip(base, logs)]
