"""ARMed: adaptive semantic rewards, stretched within the group against reward collapse.

`armed` is a reward shaping for the raw score of one slot, such as a text similarity.

Paper: ARMed, arXiv:2508.12957. Deviates: the formula is ours, from what the abstract says; quantiles are of
the group.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.capabilities import RewardSlot
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group


@register("armed")
@dataclass(frozen=True)
class Armed(RewardShaping):
    """ARMed's adaptive reward: rescales the scores of a slot to the group's own range.

        r + weight (s' - s),  s' = clip((s - lo) / (hi - lo), 0, 1)^gamma

    s is the raw score in `slot`, lo and hi the quantiles `low` and `high` of it in the group, `weight` the
    slot's own weight in the total reward. Edge: where hi - lo is below `min_spread` the rewards stay, so that
    noise is not amplified.
    """

    slot: RewardSlot
    weight: float = 1.0
    low: float = 0.0
    high: float = 1.0
    gamma: float = 1.0
    min_spread: float = 0.02

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1 or self.gamma <= 0:
            raise ValueError(
                f"low={self.low}, high={self.high}, gamma={self.gamma}: 0 <= low < high <= 1 and gamma "
                "above 0 are needed"
            )

    def __call__(self, group: Group) -> list[float]:
        raw = group.raw(self.slot)
        lo, hi = quantile(raw, self.low), quantile(raw, self.high)
        if hi - lo < self.min_spread:
            return group.rewards
        stretched = [min(max((s - lo) / (hi - lo), 0.0), 1.0) ** self.gamma for s in raw]
        return [
            total + self.weight * (new - old)
            for total, new, old in zip(group.rewards, stretched, raw, strict=True)
        ]


def quantile(values: list[float], share: float) -> float:
    """The quantile by linear interpolation between order statistics, as numpy's default."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
