"""Group filters: which scored groups are trained on.

dynamic_sampling   DAPO: groups whose outcomes differ
accuracy_range     MM-Eureka: groups that are neither too easy nor too hard
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlrl.methods.common.correctness import mean_outcome, success_rate
from vlrl.plugins.capabilities import RewardSlot
from vlrl.plugins.registry import register
from vlrl.plugins.stages import GroupFilter
from vlrl.types import FilterDecision, Group


@register("dynamic_sampling")
@dataclass(frozen=True)
class DynamicSampling(GroupFilter):
    """DAPO's dynamic sampling: keeps a group whose outcomes differ by more than `tolerance`: max o - min o >
    tolerance.

    Of 0/1 outcomes "outcome" is eq. 11, 0 < correct < G. Of graded ones (IoU) it also keeps groups that are
    all right or all wrong as long as they differ, because their advantages do: the rule of verl's
    filter_groups with metric acc, std > 0 (verl-project/verl 1dda039b). Paper: Yu et al. 2025 (DAPO),
    arXiv:2503.14476, eq. 11. Edge: a group of one rollout is never kept; where the outcome's reward has no
    weight, or did not score the group, "outcome" and "correct" fall back on the total. Raises KeyError if
    `slot` did not score the rollouts.

    Attributes:
        metric: o is the raw score of the row's outcome reward ("outcome"), whether the rollout is correct
            ("correct"), or the total reward after shaping ("total": every group with an advantage is kept).
        slot: A raw reward instead.
    """

    metric: Literal["outcome", "correct", "total"] = "outcome"
    slot: RewardSlot = ""
    tolerance: float = 1e-9

    def __call__(self, group: Group) -> FilterDecision:
        if not len(group):
            return FilterDecision(False, "empty group")
        name, scores = self.scores(group)
        if max(scores) - min(scores) > self.tolerance:
            return FilterDecision(True)
        return FilterDecision(False, f"all {name} {scores[0]:.3g}")

    def scores(self, group: Group) -> tuple[str, list[float]]:
        """What is compared, for the log, and one number per rollout."""
        if self.slot:
            return self.slot, group.raw(self.slot)
        outcomes = [rollout.outcome for rollout in group if rollout.outcome is not None]
        if self.metric == "total" or len(outcomes) < len(group) or not self.outcome_is_paid(group):
            return "rewards", group.rewards
        return (
            ("outcomes", outcomes)
            if self.metric == "outcome"
            else ("correct", [float(rollout.correct) for rollout in group])
        )

    def outcome_is_paid(self, group: Group) -> bool:
        """Whether the group's outcome reward has a weight; True before the plug-in is set up."""
        return not self.is_set_up or self.run.rewards[self.run.outcome_slot(group.row)].weight > 0


@register("accuracy_range")
@dataclass(frozen=True)
class AccuracyRange(GroupFilter):
    """MM-Eureka's online filter: keeps a group whose accuracy, the mean score of the outcome reward, is in
    [low, high].

    `metric` "correct" takes the share of correct rollouts instead, which differs for graded outcomes.
    Paper: Meng et al. 2025 (MM-Eureka), arXiv:2503.07365, sec. 3.2: online filter; released code 0.1 and 0.9.
    Edge: an empty group is dropped.
    """

    low: float = 0.1
    high: float = 0.9
    metric: Literal["outcome", "correct"] = "outcome"

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}: no group would be kept")

    def __call__(self, group: Group) -> FilterDecision:
        if not len(group):
            return FilterDecision(False, "empty group")
        accuracy = mean_outcome(group.rollouts) if self.metric == "outcome" else success_rate(group.rollouts)
        if self.low <= accuracy <= self.high:
            return FilterDecision(True)
        return FilterDecision(False, "too easy" if accuracy > self.high else "too hard")
