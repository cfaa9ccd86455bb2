"""Prompts that the policy's greedy answer does not solve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.methods.common.correctness import accuracies, slots_of
from vlrl.registry import ConfigError, register
from vlrl.stages import GroupFilter
from vlrl.types import FilterDecision, Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("self")
@dataclass(frozen=True)
class Self(GroupFilter):
    """Keeps a group whose greedy completion has a reward below `right`.

    Paper: Nguyen et al. 2025 (SELF), arXiv:2510.02230: training on prompts of low likelihood; checked against RayMaxPPOTrainer of the release, which
    decodes each prompt greedily and drops those whose reward is 1. Deviates: the release samples the group only after that; here strategy `remax`
    samples both, which costs the dropped groups' samples and changes nothing else. `slot` is the accuracy (empty: the first
    reward with a weight that scored it).
    Edge: a group whose greedy completion could not be scored is dropped.
    """

    right: float = 1.0
    slot: str = ""
    reads_greedy = True
    slots: list[str] = field(init=False, default_factory=list, repr=False, compare=False)

    def check(self, run: RunContext) -> None:
        if run.rollout.name != "remax.greedy_baseline":
            raise ConfigError("gate greedy_wrong reads the greedy completion, which only strategy remax samples; use strategy: {name: remax}")

    def setup(self, run: RunContext) -> None:
        self.slots[:] = slots_of(run)

    def __call__(self, group: Group) -> FilterDecision:
        greedy = next((rollout for rollout in group.untrained if rollout.source == "greedy"), None)
        if greedy is None:
            return FilterDecision(False, "no greedy answer")
        (found,) = accuracies(Group(group.prompt, [greedy]), self.slot, self.slots)
        return FilterDecision(False, "solved greedily") if found >= self.right else FilterDecision(True)
