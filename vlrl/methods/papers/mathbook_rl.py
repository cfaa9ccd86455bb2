"""MathBook-RL (We-Math 2.0), pre-aligned RL: rewards are averaged by rank over the variants of one knowledge principle.

Paper: We-Math 2.0 (MathBook-RL), arXiv:2508.10433, with released code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import AdvantageEstimator
from vlrl.types import Group


@register("mathbook_rl")
@dataclass(frozen=True)
class MathbookRl(AdvantageEstimator):
    """MathBook-RL's advantage: A_i = (mean over variants of the reward at i's rank - mean) / (std + eps), mean and std over the principle's rollouts.

    Groups whose rows have the same `row.meta[key]` are variants of one principle. The rewards of each variant are sorted from best to worst and
    averaged rank by rank; a rollout takes the average of its rank. The better the policy does on all variants, the larger the advantage of the best
    rollouts.
    Paper: We-Math 2.0 (MathBook-RL), arXiv:2508.10433 (pre-aligned RL, as released).
    Deviates: with groups of different sizes, a rank is averaged over the groups that have it.
    Edge: one variant is GRPO with the population std; equal rewards give zeros; rollouts of equal reward keep their order. A row without the key is a
    principle of its own.
    """

    key: str = "principle"
    eps: float = 1e-6

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        principles: dict[object, list[int]] = {}
        for index, group in enumerate(groups):
            principles.setdefault(group.row.meta.get(self.key, ("alone", index)), []).append(index)
        advantages: list[list[float]] = [[] for _ in groups]
        for variants in principles.values():
            by_rank = [sorted(groups[i].rewards, reverse=True) for i in variants]
            ranks = [[rewards[k] for rewards in by_rank if k < len(rewards)] for k in range(max(map(len, by_rank)))]
            averages = [sum(rewards) / len(rewards) for rewards in ranks]
            pooled = [reward for rewards in by_rank for reward in rewards]
            mean = sum(pooled) / len(pooled)
            std = (sum((reward - mean) ** 2 for reward in pooled) / len(pooled)) ** 0.5
            for i in variants:
                rewards = groups[i].rewards
                order = sorted(range(len(rewards)), key=rewards.__getitem__, reverse=True)
                rank = {k: place for place, k in enumerate(order)}
                advantages[i] = [(averages[rank[k]] - mean) / (std + self.eps) for k in range(len(rewards))]
        return advantages
