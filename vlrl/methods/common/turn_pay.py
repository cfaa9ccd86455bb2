"""Pay per turn of an episode in place of the environment's, for advantages per turn."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence

from vlrl.methods.core.turn_advantage import episodes_of
from vlrl.plugins.episodes import ACTIONS, END_STATE, TURN_REWARDS, TURN_STATES
from vlrl.types import Group, Rollout

UNTOLD = (
    "objects",
    "width",
    "height",
    "goal",
)  # of a described state: what does not change from turn to turn


def states_after(rollout: Rollout) -> list[str]:
    """What each turn of an episode led to, as a short text; "" where that is not known. `rollout` is its last
    one."""
    turns = len(TURN_REWARDS.get(rollout) or [])
    states = [*(TURN_STATES.get(rollout) or [])[1:], END_STATE.get(rollout, "")]
    return [told(state) for state in [*states, *[""] * turns][:turns]]


def told(state: str, without: Sequence[str] = ()) -> str:
    """A state as a short text: a described one as its values but those named, another as it is."""
    try:
        value = json.loads(state)
    except (ValueError, RecursionError):
        return state
    if not isinstance(value, dict):
        return state
    kept = {key: item for key, item in value.items() if key not in (*UNTOLD, *without)}
    return ", ".join(f"{key} {_plain(item)}" for key, item in sorted(kept.items()))


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value) or "nothing"


def counted(texts: Sequence[str]) -> list[int]:
    """How often each text has occurred so far, itself included.

    >>> counted(["a", "b", "a"])
    [1, 1, 2]
    """
    seen: Counter[str] = Counter()
    found = []
    for text in texts:
        seen[text] += 1
        found.append(seen[text])
    return found


def add_pay(group: Group, pays: Sequence[Sequence[float]], share: float) -> list[float]:
    """Add pay per episode and turn to `share` of the environment's; the new rewards of the rollouts.

    TURN_REWARDS of all rollouts of an episode are replaced. What the episode's reward holds besides the
    environment's pay stays.
    """
    rewards: dict[int, float] = {}
    for episode, added in zip(episodes_of(group), pays, strict=True):
        own = list(TURN_REWARDS.get(episode[-1]) or [])
        rest = [0.0] * max(0, len(own) - len(added))  # of turns that were not carried out
        turns = [share * paid + more for paid, more in zip(own, [*added, *rest])]
        for rollout in episode:
            rewards[id(rollout)] = rollout.reward - math.fsum(own) + math.fsum(turns)
            TURN_REWARDS.set(rollout, turns)
    return [rewards[id(rollout)] for rollout in group]


def decisions(states: Sequence[str], turns: Sequence[str]) -> list[str]:
    """What was done in which state, a text for each turn: `states` before the first turn, and after each. The
    action is the one that the state behind it names, else the turn's text."""
    found = []
    for before, after, text in zip(states, states[1:], turns):
        found.append(f"{told(before, ('action',))}: {named_action(after) or text.strip()}")
    return found


def decisions_of(rollout: Rollout) -> list[str]:
    """`decisions` of an episode; `rollout` is its last one."""
    states = [*(TURN_STATES.get(rollout) or []), END_STATE.get(rollout, "")]
    return decisions(states, ACTIONS.get(rollout) or [])


def named_action(state: str) -> str:
    """The action that led to a described state; "" where it does not say."""
    try:
        value = json.loads(state)
    except (ValueError, RecursionError):
        return ""
    return str(value.get("action", "")) if isinstance(value, dict) else ""
