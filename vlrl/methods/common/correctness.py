"""Which raw reward says whether a rollout is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


def slots_of(run: RunContext) -> list[str]:
    """The reward slots that count, in their order."""
    return [slot for slot, reward in getattr(run, "rewards", {}).items() if reward.weight > 0]


def accuracies(group: Group, slot: str = "", slots: list[str] | None = None) -> list[float]:
    """One number per rollout: the raw reward `slot`; without one, the first of `slots` that scored the group; without any, the total.

    Raises KeyError if `slot` did not score a rollout.
    """
    first = slot or next((name for name in slots or () if len(group) and all(name in rollout.rewards for rollout in group)), "")
    return group.raw(first) if first else group.rewards
