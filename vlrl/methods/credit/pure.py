"""The worst step decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import Credit
from vlrl.types import Group


def softmin_rewards(rewards: Sequence[float], temperature: float) -> list[float]:
    """r'_i = softmin(r / T)_i * r_i: a sum of these is close to min r for small T."""
    low = min(rewards)
    weights = [math.exp(-(r - low) / temperature) for r in rewards]
    return [w / math.fsum(weights) * r for w, r in zip(weights, rewards)]


@register("pure")
@dataclass(frozen=True)
class MinForm(Credit):
    """A_{i,t} = A_i + weight (sum of r' from t's step on - the mean of that over the rollouts of the group that have steps):  r' = softmin(r / T) r.

    r are step scores in `rollout.info["steps"]`, (end, score) pairs as a process reward model gives them (strategy `spae` is one that needs no
    model).
    Paper: Cheng et al. 2025 (PURE), arXiv:2504.15275, eq. 5-8 (T 0.1).  Deviates: the process part's baseline is the group's mean of whole-rollout
    sums.
    Edge: a rollout without steps keeps A_i: prompts with only a verifiable reward mix in freely.
    """

    temperature: float = 0.1
    weight: float = 1.0

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        steps = [rollout.info.get("steps") or [] for rollout in group]
        shaped = [softmin_rewards([r for _, r in s], self.temperature) if s else [] for s in steps]
        sums = [math.fsum(s) for s in shaped if s]
        baseline = math.fsum(sums) / len(sums) if sums else 0.0
        result = []
        for a, rollout, ends, values in zip(advantages, group, steps, shaped, strict=True):
            row, start = [a] * len(rollout), 0
            for k, (end, _) in enumerate(ends):
                row[start:end] = [a + self.weight * (math.fsum(values[k:]) - baseline)] * (end - start)
                start = end
            if ends and start < len(rollout):
                row[start:] = [a + self.weight * (values[-1] - baseline)] * (len(rollout) - start)
            result.append(row)
        return result
