"""Rewards inside rewards: building them, scoring with them, and recording their scores."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from vlrl.capabilities import Annotation
from vlrl.registry import build
from vlrl.stages import Reward
from vlrl.types import Group, Rollout

PARTS: Annotation[dict[str, float]] = Annotation("parts", dict, doc="raw scores of the rewards that another reward holds, by slot; they are logged")


def build_parts(specs: Mapping[str, Any], where: str) -> dict[str, Reward]:
    """A named map of rewards from their configs. Raises ValueError if it is empty, ConfigError if a config is wrong."""
    if not specs:
        raise ValueError(f"{where}: needs at least one reward")
    return {slot: spec if isinstance(spec, Reward) else build(Reward, spec, f"{where}.{slot}") for slot, spec in specs.items()}


def _plain(value: Any, reward: Reward) -> float:
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(f"the reward {reward.name!r} is asynchronous (it calls a service), so no other reward can hold it; give it a slot of its own")
    if not math.isfinite(value):
        raise ValueError(f"the reward {reward.name!r} gave {value!r}")
    return float(value)


def number(reward: Reward, rollout: Rollout) -> float:
    """The score of one rollout. Raises TypeError if the reward is asynchronous."""
    return _plain(reward(rollout), reward)


def numbers(reward: Reward, group: Group) -> list[float]:
    """The scores of a group. Raises TypeError if the reward is asynchronous."""
    scores = reward.score(group)
    if inspect.isawaitable(scores):
        return [_plain(scores, reward)]
    return [_plain(score, reward) for score in scores]


def note(rollout: Rollout, slot: str, value: float) -> None:
    """Record a raw part of a combined score in the annotation PARTS, for the log."""
    PARTS.set(rollout, {**PARTS.get(rollout, {}), slot: value})


def is_correct(reward: Reward, value: float) -> bool:
    """Whether a score of `reward` counts as correct: from its `correct_at` on."""
    return value >= reward.correct_at - 1e-9
