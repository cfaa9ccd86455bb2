"""What a ground-truth label may earn beside the policy's own answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.registry import register
from vlrl.stages import RewardShaping
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("visurf")
@dataclass(frozen=True)
class Visurf(RewardShaping):
    """Rollouts of `source`: r = sum of weighted scores without the slots `unpaid`; r = mean of the own rewards if an own one is as high (r_own >= r).

    With a group mean as the baseline the second makes the label's advantage zero, and leaves the others what they would be without it.
    Paper: Liu et al. 2025 (ViSurf), arXiv:2510.10606: the label gets no reward for thinking, and its reward is smoothed once the policy reaches it.
    Deviates: both forms are ours, from the paper's description; writing labels in the policy's own style is up to the data.
    Edge: no own rollout, or no label: rewards stay. `unpaid` slots that did not score a rollout are ignored.
    """

    unpaid: tuple[str, ...] = ("format",)
    source: str = "expert"
    weights: dict[str, float] = field(init=False, default_factory=dict, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        self.weights.clear()
        self.weights.update({slot: reward.weight for slot, reward in run.rewards.items()})

    def paid(self, rollout: Rollout) -> float:
        """The reward less what the slots `unpaid` gave."""
        return rollout.reward - sum(self.weights.get(slot, 1.0) * rollout.rewards.get(slot, 0.0) for slot in self.unpaid)

    def __call__(self, group: Group) -> list[float]:
        own = [rollout.reward for rollout in group if rollout.source != self.source]
        if not own:
            return group.rewards
        mean = own[0] if min(own) == max(own) else sum(own) / len(own)
        labels = {id(rollout): self.paid(rollout) for rollout in group if rollout.source == self.source}
        smoothed = {key: mean if max(own) >= reward else reward for key, reward in labels.items()}
        return [smoothed.get(id(rollout), rollout.reward) for rollout in group]
