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
    """A_{i,t} = A_i + weight * sum over the steps k from t's on of (r'_k - b_i),  r' = softmin(r / T) r,  b_i = mean_{j != i} (sum r'_j) / n_j.

    r are the n_i step scores in `rollout.info["steps"]`, (end, score) pairs as a process reward model gives them (strategy `spae` is one that needs
    no model); A_i is the verifiable reward's RLOO advantage.
    Paper: Cheng et al. 2025 (PURE), arXiv:2504.15275, eq. 5-8; T 0.1 and the baseline (a step's mean reward in the other rollouts) as in the
    released code, which then whitens the sum over the batch.
    Edge: a rollout without steps keeps A_i: prompts with only a verifiable reward mix in freely. Tokens after the last step keep A_i too. Where no
    other rollout has steps b_i is 0.
    """

    temperature: float = 0.1
    weight: float = 1.0

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        steps = [rollout.info.get("steps") or [] for rollout in group]
        shaped = [softmin_rewards([r for _, r in s], self.temperature) if s else [] for s in steps]
        averages = [math.fsum(values) / len(values) if values else None for values in shaped]
        result = []
        for i, (a, rollout, ends, values) in enumerate(zip(advantages, group, steps, shaped, strict=True)):
            others = [average for j, average in enumerate(averages) if j != i and average is not None]
            baseline = math.fsum(others) / len(others) if others else 0.0
            row, start = [a] * len(rollout), 0
            for k, (end, _) in enumerate(ends):
                row[start:end] = [a + self.weight * math.fsum(value - baseline for value in values[k:])] * (end - start)
                start = end
            result.append(row)
        return result
