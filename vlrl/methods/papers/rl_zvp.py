"""RL-ZVP: advantages for zero-variance prompts, whose rollouts are all correct or all wrong, shaped by the
entropy of the tokens.

`rl_zvp` is a token credit.

Paper: Le et al. 2025 (RL-ZVP), arXiv:2509.21880, eq. 5-6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import TokenCredit
from vlrl.types import Group


@register("rl_zvp")
@dataclass(frozen=True)
class RlZvp(TokenCredit):
    """RL-ZVP's advantages of a group whose rewards are all equal; other groups keep their own advantages.

        all correct: A_{i,t} = alpha H_{i,t};  all wrong: A_{i,t} = -alpha (max_k H_{i,k} - H_{i,t})

    H is the policy's token entropy (nats) when the batch was collected.
    Edge: a wrong rollout whose entropies are all equal gets zeros; equal rewards of which only some are
    correct give the group's own advantages.
    """

    alpha: float = 0.1
    needs = ("entropy",)

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        rewards, correct = group.rewards, {rollout.correct for rollout in group}
        if max(rewards) != min(rewards) or len(correct) > 1:
            return [[a] * len(rollout) for a, rollout in zip(advantages, group, strict=True)]
        entropies = [rollout.signals["entropy"] for rollout in group]
        if correct == {True}:
            return [[self.alpha * h for h in row] for row in entropies]
        return [[-self.alpha * (max(row) - h) for h in row] for row in entropies]
