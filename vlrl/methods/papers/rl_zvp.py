"""A signal for groups whose rewards are all equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import TokenCredit
from vlrl.types import Group


@register("rl_zvp")
@dataclass(frozen=True)
class RlZvp(TokenCredit):
    """All right: A_{i,t} = alpha H_{i,t}.  All wrong: A_{i,t} = -alpha (max_k H_{i,k} - H_{i,t}).  Else the group's own advantages.

    H is the policy's token entropy (nats) when the batch was collected. Right means a reward above `threshold`.
    Paper: Le et al. 2025 (RL-ZVP), arXiv:2509.21880, eq. 5-6.  Edge: an all-wrong rollout whose entropies are equal gets zeros.
    """

    alpha: float = 0.1
    threshold: float = 0.5
    needs = ("entropy",)

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        rewards = group.rewards
        if max(rewards) != min(rewards):
            return [[a] * len(rollout) for a, rollout in zip(advantages, group, strict=True)]
        entropies = [rollout.signals["entropy"] for rollout in group]
        if rewards[0] > self.threshold:
            return [[self.alpha * h for h in row] for row in entropies]
        return [[-self.alpha * (max(row) - h) for h in row] for row in entropies]
