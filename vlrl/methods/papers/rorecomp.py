"""Short right and long wrong rollouts first, the others later."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vlrl.methods.common.stored_groups import packed, unpacked
from vlrl.registry import register
from vlrl.stages import ReplayBuffer
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


def first(rollouts: Sequence[Rollout], share: float, longest: bool) -> set[int]:
    """ids of the ceil(share * n) shortest (or longest) rollouts; of equal ones the earlier."""
    order = sorted(rollouts, key=lambda rollout: -len(rollout) if longest else len(rollout))
    return {id(rollout) for rollout in order[: math.ceil(share * len(order) - 1e-9)]}


@register("rorecomp")
@dataclass(frozen=True)
class Rorecomp(ReplayBuffer):
    """A step trains on each group's ceil(right * n+) shortest right and ceil(wrong * n-) longest wrong rollouts; the rest waits.

    Every `every`-th step also trains on what waits: the rest of the last `size` groups. Rewards stay as they are, and advantages are of whole
    groups: what a step does not train on is masked, not removed.
    Paper: Li et al. 2025 (RoRecomp), arXiv:2509.25958: priority batches, and compensation batches from a replay buffer. No released code was found:
    the shares, `every` and `size` are ours, as is that rollouts are ranked within their group. Right means a reward above `threshold`.
    Stored rollouts keep the log-probs that they were sampled with: weight `tis` corrects for their age. Edge: shares of 1 are plain training.
    Each rank has a buffer of its own. State: the stored groups, of the first rank; rows that are no longer in the data are forgotten.
    """

    right: float = 0.5
    wrong: float = 0.5
    every: int = 4
    size: int = 256
    threshold: float = 0.5
    stored: list[Group] = field(init=False, default_factory=list, repr=False, compare=False)
    asleep: list[dict[str, Any]] = field(init=False, default_factory=list, repr=False, compare=False)
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (0 < self.right <= 1 and 0 < self.wrong <= 1) or min(self.every, self.size) < 1:
            raise ValueError(f"right={self.right} and wrong={self.wrong} must be in (0, 1], every={self.every} and size={self.size} at least 1")

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        if self.asleep:
            self.stored[:] = unpacked(self.asleep, self.run)
            self.asleep.clear()
        out = []
        for group in groups:
            chosen = first([r for r in group if r.reward > self.threshold], self.right, longest=False)
            chosen |= first([r for r in group if r.reward <= self.threshold], self.wrong, longest=True)
            out.append(only(group, [id(rollout) in chosen for rollout in group]))
            if len(chosen) < len(group):
                rest = only(group, [id(rollout) not in chosen for rollout in group])
                for rollout in rest:
                    rollout.signals = {}  # of a policy that will be gone
                self.stored.append(replace(rest, id=f"{group.id}/rest"))
        del self.stored[: -self.size]
        if self.run is not None and (self.run.phase_step + 1) % self.every == 0:
            out += self.stored
            self.stored.clear()
        return out

    def state_dict(self) -> dict[str, Any]:
        return {"stored": [*self.asleep, *map(packed, self.stored)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stored.clear()
        self.asleep[:] = state["stored"]


def only(group: Group, chosen: Sequence[bool]) -> Group:
    """The group with the loss masked on all rollouts that are not chosen."""
    rollouts = [
        replace(rollout, loss_mask=rollout.loss_mask if keep else [False] * len(rollout), info=dict(rollout.info))
        for rollout, keep in zip(group, chosen, strict=True)
    ]
    return Group(group.prompt, rollouts, group.id, dict(group.info), group.untrained)
