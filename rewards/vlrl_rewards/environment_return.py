"""What an environment paid for an episode, and what the episode's turns were."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from vlrl.plugins.episodes import ACTIONS, EPISODE_END, EPISODE_RETURN, TURN_PARTS
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout


@register("environment_return")
@dataclass(frozen=True, kw_only=True)
class EnvironmentReturn(Reward):
    """The return of an episode: r = sum over turns of the environment's reward, or of its named part `part`.

    vlrl original. Reads EPISODE_RETURN and TURN_PARTS, which rollout strategy `multi_turn` writes. Edge: an
    episode that the policy lost before the environment stated a reward (a turn that was cut, no room, too
    many invalid actions) scores 0. One that ended by itself without a reward, or without this part, raises
    KeyError: the rollout is dropped and counted; `missing` is its score in place of that.
    """

    needs_gold: ClassVar[bool] = False
    part: str = ""
    missing: float | None = None
    requires = (EPISODE_RETURN, TURN_PARTS)

    def __call__(self, rollout: Rollout) -> float:
        found = TURN_PARTS[rollout].get(self.part) if self.part else EPISODE_RETURN.get(rollout)
        if found is not None:
            return float(found)
        if self.missing is None and EPISODE_END.get(rollout, "done") in (
            "length",
            "context",
            "invalid_action",
        ):
            return 0.0
        if self.missing is None:
            what = f"no reward part {self.part!r}" if self.part else "no reward"
            raise KeyError(
                f"the environment stated {what} for this episode; set `missing`, or use a reward that "
                "reads the answer"
            )
        return self.missing


@register("action_share")
@dataclass(frozen=True, kw_only=True)
class ActionShare(Reward):
    """A designer's heuristic for agents: the share of an episode's turns that name one of `actions`.

        r = turns with one of the words / turns

    vlrl original, for methods that weigh a heuristic against the task's reward (arXiv:2310.19007). Only what
    the policy wrote counts; a turn that names two of them counts once. Edge: no turns: 0. 0 to 1.
    """

    reads_answer: ClassVar[bool] = False
    needs_gold: ClassVar[bool] = False
    actions: tuple[str, ...] = ()
    requires = (ACTIONS,)

    def __post_init__(self) -> None:
        if not self.actions:
            raise ValueError("action_share: actions is empty; name at least one, like [forward]")

    def __call__(self, rollout: Rollout) -> float:
        turns = ACTIONS.get(rollout, [])
        named = [bool(set(re.findall(r"[\w-]+", text)) & set(self.actions)) for text in turns]
        return sum(named) / len(named) if named else 0.0
