"""Group filters: which scored groups are trained on.

dynamic_sampling   DAPO: groups whose rewards differ
accuracy_range     MM-Eureka: groups that are neither too easy nor too hard
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.common.correctness import mean_outcome
from vlrl.registry import register
from vlrl.stages import GroupFilter
from vlrl.types import FilterDecision, Group


@register("dynamic_sampling")
@dataclass(frozen=True)
class DynamicSampling(GroupFilter):
    """DAPO's dynamic sampling: keeps a group whose rewards differ by more than `tolerance`: max r - min r > tolerance.

    r is the total reward, or the raw reward of `slot` (DAPO's is the accuracy).
    Paper: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 11: 0 < correct rollouts < G.
    Edge: a group of one rollout is never kept. Raises KeyError if `slot` did not score the rollouts.
    """

    slot: str = ""
    tolerance: float = 1e-9

    def __call__(self, group: Group) -> FilterDecision:
        scores = group.raw(self.slot) if self.slot else group.rewards
        if scores and max(scores) - min(scores) > self.tolerance:
            return FilterDecision(True)
        return FilterDecision(False, f"all {self.slot or 'rewards'} {scores[0]:.3g}" if scores else "empty group")


@register("accuracy_range")
@dataclass(frozen=True)
class AccuracyRange(GroupFilter):
    """MM-Eureka's online filter: keeps a group whose accuracy, the mean score of the outcome reward, is in [low, high].

    Paper: Meng et al. 2025 (MM-Eureka), arXiv:2503.07365, sec. 3.2: online filter; released code 0.1 and 0.9. Edge: an empty group is dropped.
    """

    low: float = 0.1
    high: float = 0.9

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}: no group would be kept")

    def __call__(self, group: Group) -> FilterDecision:
        if not len(group):
            return FilterDecision(False, "empty group")
        accuracy = mean_outcome(group.rollouts)
        if self.low <= accuracy <= self.high:
            return FilterDecision(True)
        return FilterDecision(False, "too easy" if accuracy > self.high else "too hard")
