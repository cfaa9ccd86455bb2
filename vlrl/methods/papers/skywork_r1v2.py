"""Skywork R1V2: the selective sample buffer, which replaces groups without an advantage by stored groups that
have one.

`skywork_r1v2` is a replay buffer. Token weight `tis` or `icepop` corrects for the age of the stored rollouts.
Paper: Skywork R1V2, arXiv:2504.16656.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.methods.common.stored_groups import packed, rows_of, unpacked
from vlrl.methods.core.token_weight import TIS, IcePop
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import ReplayBuffer, State
from vlrl.types import Group


def mean_size(group: Group) -> float:
    """mean_i |A_i| with A = (r - mean) / std, in [0, 1]; 0 where all rewards are equal."""
    mean = sum(group.rewards) / len(group) if len(group) else 0.0
    std = (sum((r - mean) ** 2 for r in group.rewards) / len(group)) ** 0.5 if len(group) else 0.0
    return sum(abs(r - mean) for r in group.rewards) / len(group) / std if std > 1e-9 else 0.0


@dataclass
class StoredGroup:
    """A group of the buffer: its mean |A|, and how often it may still be used."""

    group: Group
    weight: float
    uses_left: int


@dataclass
class SkyworkR1v2State(State):
    """The stored groups, oldest first, and the number of draws so far.

    Saved are the rollouts as plain values. After a restart they wait in `packed` until their prompts are made
    again from the rows.
    """

    stored: list[StoredGroup] = field(default_factory=list)
    draws: int = 0
    packed: list[dict[str, Any]] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        made = [{**packed(item.group), "weight": item.weight, "left": item.uses_left} for item in self.stored]
        return {"stored": [*self.packed, *made], "draws": self.draws}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        self.stored, self.draws, self.packed = [], values["draws"], deepcopy(values["stored"])

    def unpack(self, run: StageContext) -> None:
        """Make the groups of a checkpoint again. Groups whose row is no longer in the data are dropped."""
        if self.packed:
            rows = rows_of(run, {item["row"] for item in self.packed})
            items = [item for item in self.packed if item["row"] in rows]
            groups = unpacked(items, run)
            self.stored = [
                StoredGroup(group, item["weight"], item["left"])
                for group, item in zip(groups, items, strict=True)
            ]
            self.packed = []


@register("skywork_r1v2")
@dataclass(frozen=True)
class SkyworkR1v2(ReplayBuffer):
    """Skywork R1V2's selective sample buffer: groups with |A| > 0 are kept and stored; each other one is
    replaced by a stored group.

    Stored groups are drawn without replacement within a step, with p ~ mean |A|. Paper: Skywork R1V2,
    arXiv:2504.16656. Deviates: whole groups are drawn, and their rewards normalised again; a group is used
    `uses` times at most and dropped after `size` newer ones (both ours). Stored rollouts keep the log-probs
    that they were sampled with: token weight `tis` corrects for their age; `engine/*` counts them too. Edge:
    with an empty buffer a group stays as it is. Each rank has its own buffer. State: the stored rollouts by
    row and the number of draws, of the first rank.
    """

    state_class = SkyworkR1v2State
    size: int = 256
    uses: int = 2

    def __post_init__(self) -> None:
        if self.size < 1 or self.uses < 1:
            raise ValueError(f"size={self.size} and uses={self.uses} must be at least 1")

    def check(self, phase: PhaseContext) -> None:
        if not any(isinstance(weight, (TIS, IcePop)) for weight in phase.objective.token_weights.values()):
            raise ConfigError(
                f"replay: {self.name!r} trains on rollouts of older policies, and no token weight corrects "
                "for their age; "
                "add token_weights: {age: {name: tis}}"
            )

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        state = self.state
        state.unpack(self.run)
        sized = [(group, mean_size(group)) for group in groups]
        drawn: set[int] = set()
        trained = [group if size > 0 else self.draw(drawn) or group for group, size in sized]
        state.stored = [item for item in state.stored if item.uses_left > 0]
        state.stored += [StoredGroup(group, size, self.uses) for group, size in sized if size > 0]
        del state.stored[: -self.size]
        return trained

    def draw(self, drawn: set[int]) -> Group | None:
        """A stored group whose index is not in `drawn`, as a new group; None if there is none. Its index is
        added to `drawn`."""
        state = self.state
        indices = [i for i, item in enumerate(state.stored) if i not in drawn and item.uses_left > 0]
        if not indices:
            return None
        rng = random.Random(f"{self.run.seed}/selective_buffer/{state.draws}")
        state.draws += 1
        index = rng.choices(indices, [state.stored[i].weight for i in indices])[0]
        drawn.add(index)
        item = state.stored[index]
        item.uses_left -= 1
        rollouts = [
            replace(r, advantage=0.0, advantages=[], signals={}, info=dict(r.info)) for r in item.group
        ]
        return Group(
            item.group.prompt,
            rollouts,
            f"{item.group.id}/again{self.uses - item.uses_left}",
            dict(item.group.info),
        )
