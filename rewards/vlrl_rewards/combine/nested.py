"""Rewards inside rewards: building them, scoring with them, and recording their scores and what they say is
correct."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.registry import build
from vlrl.plugins.scoring import NoScore
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Rollout

PARTS: Annotation[dict[str, float]] = Annotation(
    "parts", dict, doc="raw scores of the rewards that another reward holds, by slot; they are logged"
)
VERDICTS: Annotation[dict[str, bool]] = Annotation(
    "verdicts", dict, doc="whether the rewards inside a reward call the rollout correct, by `verdict_key`"
)


def build_parts(specs: Mapping[str, Any], where: str) -> dict[str, Reward]:
    """A named map of rewards from their configs. Raises ValueError if it is empty, ConfigError if a config is
    wrong."""
    if not specs:
        raise ValueError(f"{where}: needs at least one reward")
    return {
        slot: spec if isinstance(spec, Reward) else build(Reward, spec, f"{where}.{slot}")
        for slot, spec in specs.items()
    }


def _plain(value: Any, reward: Reward) -> float:
    if isinstance(value, NoScore):
        raise value
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(
            f"the reward {reward.name!r} is asynchronous (it calls a service), so no other reward can hold "
            "it; give it a slot of its own"
        )
    if not math.isfinite(value):
        raise ValueError(f"the reward {reward.name!r} gave {value!r}")
    return float(value)


def number(reward: Reward, rollout: Rollout) -> float:
    """The score of one rollout. Raises TypeError if the reward is asynchronous."""
    return _plain(reward(rollout), reward)


def numbers(reward: Reward, group: Group) -> list[float]:
    """The scores of a group. Raises TypeError if the reward is asynchronous."""
    scores = reward.score_group(group)
    if inspect.isawaitable(scores):
        return [_plain(scores, reward)]
    return [_plain(score, reward) for score in scores]


def note(rollout: Rollout, slot: str, value: float) -> None:
    """Record a raw part of a combined score in the annotation PARTS, for the log."""
    PARTS.set(rollout, {**PARTS.get(rollout, {}), slot: value})


def verdict_key(reward: Reward) -> str:
    """Identifies a reward by its config: equal rewards have equal keys."""
    return hashlib.sha256(repr(reward).encode()).hexdigest()[:16]


def note_correct(holder: Reward, rollout: Rollout, correct: bool) -> bool:
    """Record whether the rewards inside `holder` call the rollout correct, for `Reward.correct`. Returns
    `correct`."""
    VERDICTS.set(rollout, {**VERDICTS.get(rollout, {}), verdict_key(holder): correct})
    return correct


def noted_correct(holder: Reward, rollout: Rollout) -> bool:
    """What `note_correct` recorded while `holder` scored the rollout; it is scored where nothing was."""
    if verdict_key(holder) not in VERDICTS.get(rollout, {}):
        number(holder, rollout)
    return VERDICTS[rollout][verdict_key(holder)]


@dataclass(frozen=True, kw_only=True)
class OverReward(Reward):
    """Base of rewards over one other reward, whose config is `of`.

    decides: a rollout is correct where `of` says so, whatever the score.
    """

    decides: ClassVar[bool] = True
    of: Mapping[str, Any] = field(default_factory=lambda: {"name": "math"})

    def __post_init__(self) -> None:
        _ = self.inner  # built now, so that a wrong config is refused at once
        if self.decides:
            check_correct_at(self)

    @cached_property
    def inner(self) -> Reward:
        """The reward that `of` configures."""
        return build_parts({"of": self.of}, self.name)["of"]

    @property
    def inner_rewards(self) -> tuple[Reward, ...]:
        return (self.inner,)

    def correct(self, rollout: Rollout, score: float) -> bool:
        """What `of` says, as `note_correct` recorded it; else by `correct_at`."""
        return noted_correct(self, rollout) if self.decides else super().correct(rollout, score)


def check_correct_at(holder: Reward) -> None:
    """Raise ValueError for a `correct_at` on a reward whose inner rewards decide what is correct."""
    if holder.correct_at != Reward.correct_at:
        raise ValueError(
            f"{holder.name}: correct_at={holder.correct_at} would have no effect, because the rewards "
            "inside it decide what is correct; "
            "set correct_at of the inner reward"
        )
