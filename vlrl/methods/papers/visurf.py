"""ViSurf: the ground-truth label is one more rollout of its group; reward control limits what it gains.

`visurf` is a reward shaping, after a rollout strategy that adds labels (`luffy`). Paper: Liu et al. 2025
(ViSurf), arXiv:2510.10606.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.capabilities import RewardSlot
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group, Rollout


@register("visurf")
@dataclass(frozen=True)
class Visurf(RewardShaping):
    """ViSurf's reward control of labels (rollouts of `source`): r = total reward without the slots
    `excluded`, then smoothed.

    Smoothing: r = mean of the own rewards if an own rollout's reward is at least r. With a group mean as the
    baseline this makes the label's advantage zero, and leaves the others' as they would be without it. Paper:
    Liu et al. 2025 (ViSurf), arXiv:2510.10606: the label gets no reward for thinking, and its reward is
    smoothed once the policy reaches it. Deviates: both forms are ours, from the paper's description; writing
    labels in the policy's own style is up to the data. Edge: no own rollout, or no label: rewards stay.
    `excluded` slots that did not score are ignored.
    """

    excluded: tuple[RewardSlot, ...] = ("format",)
    source: str = "expert"

    def label_reward(self, rollout: Rollout) -> float:
        """The reward without the weighted scores of the slots `excluded`."""
        rewards = self.run.rewards
        return rollout.reward - sum(
            rewards[slot].weight * rollout.rewards[slot] for slot in self.excluded if slot in rollout.rewards
        )

    def __call__(self, group: Group) -> list[float]:
        own = [rollout.reward for rollout in group if rollout.source != self.source]
        if not own:
            return group.rewards
        mean = own[0] if min(own) == max(own) else sum(own) / len(own)
        labels = {
            id(rollout): self.label_reward(rollout) for rollout in group if rollout.source == self.source
        }
        smoothed = {key: mean if max(own) >= reward else reward for key, reward in labels.items()}
        return [smoothed.get(id(rollout), rollout.reward) for rollout in group]
