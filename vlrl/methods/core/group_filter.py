"""Prompts that are neither too easy nor too hard.

Dynamic sampling.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.registry import register
from vlrl.stages import GroupFilter
from vlrl.types import FilterDecision, Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("accuracy_range")
@dataclass(frozen=True)
class AccuracyRange(GroupFilter):
    """Keeps a group whose mean accuracy is in [low, high].

    `slot` is the accuracy (empty: the first reward with a weight).
    Paper: Meng et al. 2025 (MM-Eureka), arXiv:2503.07365, sec. 3.2: online filter; released code 0.1 and 0.9.  Edge: an empty group is dropped.
    """

    low: float = 0.1
    high: float = 0.9
    slot: str = ""
    seen: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}: no group would be kept")

    def setup(self, run: RunContext) -> None:
        self.seen["slot"] = self.slot or next(slot for slot, reward in run.rewards.items() if reward.weight > 0)

    def __call__(self, group: Group) -> FilterDecision:
        if not len(group):
            return FilterDecision(False, "empty group")
        scores = group.raw(self.slot or self.seen["slot"]) if self.slot or self.seen else group.rewards
        mean = sum(scores) / len(scores)
        return FilterDecision(True) if self.low <= mean <= self.high else FilterDecision(False, "too easy" if mean > self.high else "too hard")


@register("dynamic_sampling")
@dataclass(frozen=True)
class DynamicSampling(GroupFilter):
    """Keeps a group whose rewards differ by more than `tolerance`: max r - min r > tolerance.

    `slot` looks at one raw reward (DAPO looks at accuracy) rather than at the total.
    Paper: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 11: 0 < correct rollouts < G.
    Edge: a group of one rollout is never mixed. Raises KeyError if `slot` did not score the rollouts.
    """

    slot: str = ""
    tolerance: float = 1e-9

    def __call__(self, group: Group) -> FilterDecision:
        scores = group.raw(self.slot) if self.slot else group.rewards
        if scores and max(scores) - min(scores) > self.tolerance:
            return FilterDecision(True)
        return FilterDecision(False, f"all {self.slot or 'rewards'} {scores[0]:.3g}" if scores else "empty group")
