"""Advantages shared by the variants of one principle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import AdvantageEstimator
from vlrl.types import Group


@register("mathbook_rl")
@dataclass(frozen=True)
class MathbookRl(AdvantageEstimator):
    """A_i = (mean over variants of the reward at i's rank - mean) / (std + eps), mean and std over all rollouts of the principle.

    Groups whose rows have the same `row.meta[key]` are variants. The rewards of each are sorted from best to worst, averaged place by place, and a
    rollout takes the average of its place; the better a principle is known by all its variants, the more its best rollouts get.
    Paper: We-Math 2.0 (MathBook-RL), arXiv:2508.10433 (pre-aligned RL, as released).
    Deviates: groups of different sizes are averaged over the places that they have.
    Edge: one variant is GRPO; equal rewards give zeros; rollouts of equal reward keep their order. A row without the key stands alone.
    """

    key: str = "principle"
    eps: float = 1e-6

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        families: dict[object, list[int]] = {}
        for index, group in enumerate(groups):
            families.setdefault(group.row.meta.get(self.key, ("alone", index)), []).append(index)
        out: list[list[float]] = [[] for _ in groups]
        for family in families.values():
            ranked = [sorted(groups[i].rewards, reverse=True) for i in family]
            places = [[r[k] for r in ranked if k < len(r)] for k in range(max(map(len, ranked)))]
            averages = [sum(place) / len(place) for place in places]
            everything = [value for r in ranked for value in r]
            mean = sum(everything) / len(everything)
            std = (sum((v - mean) ** 2 for v in everything) / len(everything)) ** 0.5
            for i in family:
                order = sorted(range(len(groups[i])), key=lambda k, i=i: -groups[i].rewards[k])
                rank = {k: place for place, k in enumerate(order)}
                out[i] = [(averages[rank[k]] - mean) / (std + self.eps) for k in range(len(groups[i]))]
        return out
