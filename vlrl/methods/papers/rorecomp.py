"""RoRecomp: rollout response recomposition; steps train on short correct and long wrong rollouts first, and
on the others later, for efficient reasoning.

`rorecomp` is a replay buffer: priority batches, and compensation batches from a buffer. The token weight
`tis` corrects for the age of what was stored.

Paper: Li et al. 2025 (RoRecomp), arXiv:2509.25958. No released code was found: the shares, `every` and `size`
are ours, as is that rollouts are ranked within their group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.methods.common.stored_groups import packed, unpacked
from vlrl.plugins.registry import register
from vlrl.plugins.stages import ReplayBuffer, State, transient
from vlrl.types import Group, Rollout


@dataclass
class RorecompState(State):
    """The stored groups. `packed` are those of a checkpoint, until the first call after a restart unpacks
    them. Saved are plain values."""

    stored: list[Group] = field(default_factory=list)
    packed: list[dict[str, Any]] = transient(factory=list)

    def state_dict(self) -> dict[str, Any]:
        return {"stored": [*self.packed, *map(packed, self.stored)]}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        self.stored, self.packed = [], list(values["stored"])


@register("rorecomp")
@dataclass(frozen=True)
class Rorecomp(ReplayBuffer):
    """RoRecomp's batches: a step trains on each group's ceil(correct * n+) shortest correct and ceil(wrong *
    n-) longest wrong rollouts.

    n+ and n- are the numbers of correct and wrong rollouts of the group; the rest is stored. Every `every`-th
    step also trains on the rests of the last `size` groups. Rewards are unchanged, and advantages are of
    whole groups: what a step does not train on is masked, not removed. Stored rollouts keep the log-probs
    that they were sampled with. Edge: shares of 1 are plain training. Each rank has its own buffer. State:
    the stored groups, of the first rank; rows that are no longer in the data are dropped.
    """

    state_class = RorecompState
    correct: float = 0.5
    wrong: float = 0.5
    every: int = 4
    size: int = 256

    def __post_init__(self) -> None:
        if not (0 < self.correct <= 1 and 0 < self.wrong <= 1) or min(self.every, self.size) < 1:
            raise ValueError(
                f"correct={self.correct} and wrong={self.wrong} must be in (0, 1], every={self.every} and "
                f"size={self.size} at least 1"
            )

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        state: RorecompState = self.state
        if state.packed:
            state.stored, state.packed = unpacked(state.packed, self.run), []
        out = []
        for group in groups:
            chosen = first([r for r in group if r.correct], self.correct, longest=False)
            chosen |= first([r for r in group if not r.correct], self.wrong, longest=True)
            out.append(only(group, [id(rollout) in chosen for rollout in group]))
            if len(chosen) < len(group):
                rest = only(group, [id(rollout) not in chosen for rollout in group])
                for rollout in rest:
                    rollout.signals = {}  # of a policy that will have changed
                state.stored.append(replace(rest, id=f"{group.id}/rest"))
        del state.stored[: -self.size]
        if self.is_set_up and (self.run.phase_step + 1) % self.every == 0:
            out += state.stored
            state.stored = []
        return out


def first(rollouts: Sequence[Rollout], share: float, longest: bool) -> set[int]:
    """ids of the ceil(share * n) shortest (or longest) rollouts; of equal ones the earlier."""
    order = sorted(
        rollouts, key=lambda rollout: -rollout.sampled_tokens if longest else rollout.sampled_tokens
    )
    return {id(rollout) for rollout in order[: math.ceil(share * len(order) - 1e-9)]}


def only(group: Group, chosen: Sequence[bool]) -> Group:
    """The group with the loss masked on all rollouts that are not chosen."""
    rollouts = [replace(rollout, info=dict(rollout.info)) for rollout in group]
    for rollout, keep in zip(rollouts, chosen, strict=True):
        if not keep:
            rollout.leave_out([False] * len(rollout))
    return Group(group.prompt, rollouts, group.id, dict(group.info), group.untrained)
