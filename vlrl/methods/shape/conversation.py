"""One reward for all turns of a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlrl.registry import register
from vlrl.stages import Shape
from vlrl.types import Group


@register("conversation")
@dataclass(frozen=True)
class Conversation(Shape):
    """r_turn = r of the conversation's last turn.

    vlrl original; for strategy `multi_turn` with tools that answer in pictures, where a conversation is several rollouts. Edge: rollouts that are no
    conversation keep their reward. Units: reward.
    """

    joins_turns: ClassVar[bool] = True

    def __call__(self, group: Group) -> list[float]:
        last: dict[int, tuple[int, float]] = {}
        for rollout in group:
            talk, turn = rollout.info.get("conversation"), rollout.info.get("segment", 0)
            if talk is not None and turn >= last.get(talk, (-1, 0.0))[0]:
                last[talk] = (turn, rollout.reward)
        return [last[r.info["conversation"]][1] if r.info.get("conversation") is not None else r.reward for r in group]
