"""Soft scores that bunch together, spread out again."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import RewardShaping
from vlrl.types import Group


def quantile(values: list[float], share: float) -> float:
    """Linear interpolation between order statistics, as numpy's default."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@register("armed")
@dataclass(frozen=True)
class Armed(RewardShaping):
    """r + weight (s' - s),  s' = clip((s - lo) / (hi - lo), 0, 1)^gamma, s the raw reward of `slot`, lo and hi its quantiles in the group.

    Paper: ARMed, arXiv:2508.12957 (adaptive semantic reward against reward collapse). Deviates: the formula is ours, from what the abstract says;
    quantiles are of the group. Edge: a spread below `least` is left as it is, so that noise is not blown up. `weight`: the slot's own weight in the
    sum.
    """

    slot: str
    weight: float = 1.0
    low: float = 0.0
    high: float = 1.0
    gamma: float = 1.0
    least: float = 0.02

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1 or self.gamma <= 0:
            raise ValueError(f"low, high, gamma: must be 0 <= low < high <= 1 and above 0, got {self.low}, {self.high}, {self.gamma}")

    def __call__(self, group: Group) -> list[float]:
        raw = group.raw(self.slot)
        lo, hi = quantile(raw, self.low), quantile(raw, self.high)
        if hi - lo < self.least:
            return group.rewards
        spread = [min(max((s - lo) / (hi - lo), 0.0), 1.0) ** self.gamma for s in raw]
        return [total + self.weight * (new - old) for total, new, old in zip(group.rewards, spread, raw, strict=True)]
