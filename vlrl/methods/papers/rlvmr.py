"""RLVMR: turns of an agent that say what kind of reasoning they are, each kind with a reward by rule.

    rlvmr    advantage estimator: the episode's advantage plus that of the turn among turns with the same tag

Paper: Zhang et al. 2025 (RLVMR), arXiv:2507.22844; checked against the authors' code in zzjweb/digitalhuman
at 789ccd6f, RLVMR/code: rlvmr/core_rlvmr.py, agent_system/environments/env_package/alfworld/projection.py,
examples/rlvmr_trainer/run_alfworld.sh.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlrl.methods.core.turn_advantage import TurnEstimator, episodes_of
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.episodes import ACTIONS, END_STATE, TURN_REWARDS, TURN_SPANS, TURN_STATES
from vlrl.plugins.registry import register
from vlrl.plugins.stages import StepCounts
from vlrl.types import Group, Rollout

TAGS = ("planning", "explore", "reflection", "monitor")
NO_TAG = ""
_BLOCK = re.compile(rf"<({'|'.join(TAGS)})>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)
MAX_TURN = 20_000  # characters of a turn that are read


@dataclass(frozen=True)
class TaggedTurn:
    """What a turn says it is. `tag`: "" where it is malformed. `action`: what it wants to do."""

    tag: str
    action: str

    @classmethod
    def of(cls, text: str) -> TaggedTurn:
        """A turn read: one tag of `TAGS` that holds a text, and behind it one action."""
        blocks, actions = list(_BLOCK.finditer(text[:MAX_TURN])), list(_ACTION.finditer(text[:MAX_TURN]))
        action = actions[0][1].strip() if len(actions) == 1 else ""
        formed = len(blocks) == 1 and len(actions) == 1 and blocks[0].end() <= actions[0].start()
        if not formed or not blocks[0][2].strip():
            return cls(NO_TAG, action)
        return cls(blocks[0][1].lower(), action)


@register("rlvmr")
@dataclass(frozen=True)
class RLVMR(TurnEstimator):
    """RLVMR's advantage: A_{i,k} = norm(R_i - `penalty` 1[turn k is malformed]) + weight norm_tag(r_{i,k}).

    norm: minus mean, over std, of all turns of the group; norm_tag: of those with the same tag. r is
    `pays[tag]`, else 0, for

        planning     a turn of an episode that succeeds (R_i > 0)
        explore      an action that the episode has not taken before
        reflection   another action than the one before, which was malformed or left the state as it was

    Paper: arXiv:2507.22844, sec. 3.2; penalty, weight and norms are the release's. Deviates: whether an
    action failed is read from the states (there from a list of possible actions). Edge: a turn alone with its
    tag has norm_tag(r) = r; malformed turns are compared with each other.
    """

    state_class = StepCounts
    weight: float = 1.0
    penalty: float = 0.1
    pays: Mapping[str, float] = field(
        default_factory=lambda: {"planning": 1.0, "explore": 1.0, "reflection": 1.0}
    )
    eps: float = 1e-6
    requires: ClassVar[tuple[Capability, ...]] = (TURN_REWARDS, TURN_SPANS, TURN_STATES, ACTIONS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := set(self.pays) - set(TAGS):
            raise ValueError(f"pays: {', '.join(sorted(unknown))} is no tag; tags are {', '.join(TAGS)}")

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        state = self.state
        shares = {f"rlvmr/{tag}": state.share(tag, "turns") for tag in (*TAGS, "malformed")}
        paid = {f"rlvmr/{tag}_paid": state.share(f"{tag}_paid", tag) for tag in self.pays}
        return shares | paid if state.logged else {}

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return self.written(groups, [self.of_group(group) for group in groups])

    def of_group(self, group: Group) -> list[list[float]]:
        """Advantages per episode and turn."""
        episodes = episodes_of(group)
        read = [[TaggedTurn.of(text) for text in ACTIONS.get(episode[-1], [])] for episode in episodes]
        paid = [self.paid(episode[-1], turns) for episode, turns in zip(episodes, read, strict=True)]
        places = [(i, k) for i, turns in enumerate(read) for k in range(len(turns))]
        whole = normalised(
            [episodes[i][-1].reward - self.penalty * (read[i][k].tag == NO_TAG) for i, k in places], self.eps
        )
        found = [[0.0] * max(1, len(turns)) for turns in read]
        by_tag: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for (i, k), value in zip(places, whole, strict=True):
            found[i][k] = value
            by_tag[read[i][k].tag].append((i, k))
        for tag, members in by_tag.items():
            values = [paid[i][k] for i, k in members]
            self.state.add(turns=len(members), **{tag or "malformed": len(members)})
            if tag in self.pays:
                self.state.add(**{f"{tag}_paid": sum(value > 0 for value in values)})
            for (i, k), value in zip(members, normalised(values, self.eps), strict=True):
                found[i][k] += self.weight * value
        return found

    def paid(self, rollout: Rollout, turns: Sequence[TaggedTurn]) -> list[float]:
        """r of each turn of an episode; `rollout` is its last one."""
        states = [*(TURN_STATES.get(rollout) or []), END_STATE.get(rollout, "")]
        done: list[str] = []
        values = []
        for k, turn in enumerate(turns):
            before = turns[k - 1] if k else None
            earned = {
                "planning": rollout.reward > 0,
                "explore": turn.action not in done,
                "reflection": before is not None
                and turn.action != before.action
                and (before.tag == NO_TAG or unchanged(states[k - 1 : k + 1])),
            }
            values.append(self.pays.get(turn.tag, 0.0) if earned.get(turn.tag) else 0.0)
            done += [turn.action] if turn.tag else []
        return values


def unchanged(states: Sequence[str]) -> bool:
    """Whether two states are known, and equal but for the action that led there."""
    if len(states) < 2 or not all(states):
        return False
    first, second = (plain(state) for state in states)
    return bool(first == second)


def plain(state: str) -> Any:
    """A state without the action that led there, where it is a JSON object."""
    try:
        value = json.loads(state)
    except (ValueError, RecursionError):
        return state
    return {key: item for key, item in value.items() if key != "action"} if isinstance(value, dict) else state


def normalised(values: Sequence[float], eps: float) -> list[float]:
    """The values minus their mean, over their std + eps; one alone stays as it is."""
    if len(values) < 2:
        return list(values)
    mean, std = statistics.fmean(values), statistics.stdev(values) + eps
    return [(value - mean) / std for value in values]
