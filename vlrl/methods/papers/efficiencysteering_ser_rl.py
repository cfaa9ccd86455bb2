"""Shorter is better, by the policy's own shortest right answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.methods.papers.t_grpo import ReadsAccuracy
from vlrl.registry import register
from vlrl.stages import RewardShaping
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("efficiencysteering_ser_rl")
@dataclass(frozen=True)
class EfficiencysteeringSerRl(ReadsAccuracy, RewardShaping):
    """A right rollout of n tokens: r - weight p min(1, (n - m) / m), m the length of the group's shortest right rollout, p the share of right ones.

    Paper: Zhao et al. 2025 (Self-Rewarded Efficiency RL), arXiv:2506.15647: brevity among right answers, measured by the model's own shortest one,
    balanced against accuracy. Deviates: the abstract gives no formula; this one is ours, and p is its balance: a prompt that is rarely solved pays
    nothing for its length. Edge: wrong rollouts, and groups with at most one right one, keep their reward. Units: reward.
    """

    weight: float = 0.5
    least: float = 0.5
    slot: str = ""
    seen: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)

    def check(self, run: RunContext) -> None:
        self.check_slot(run)

    def __call__(self, group: Group) -> list[float]:
        right = [self.accuracy(rollout) > self.least for rollout in group]
        shortest = min((len(rollout) for rollout, ok in zip(group, right) if ok), default=1)
        factor = self.weight * sum(right) / len(right)
        return [r.reward - factor * min(1.0, (len(r) - shortest) / shortest) if ok else r.reward for r, ok in zip(group, right)]
