"""RLVER: the final emotion of a simulated user is the reward of a conversation. The user is environment
`emotional_user`.

    rlver   reward shaping: a conversation whose turns do not think and then speak gets nothing

Paper: Wang et al. 2025 (RLVER), arXiv:2507.03112, sec. 2.3; Tencent/digitalhuman, RLVER (read as
zzjweb/digitalhuman at e75a23e).
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.episodes import ACTIONS
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group, Rollout


@register("rlver")
@dataclass(frozen=True)
class Rlver(RewardShaping):
    """RLVER's format reward of the think-then-say template: the total becomes 0 unless every turn is `<think>
    thoughts </think> reply`.

    Paper: Wang et al. 2025 (RLVER), arXiv:2507.03112, sec. 2.3 (zero reward for outputs that break the
    template). Edge: a thought or a reply of blanks alone, a second thought, and words before the thought
    break it; a negative total stays.
    """

    requires = (ACTIONS,)

    def __call__(self, group: Group) -> list[float]:
        return [rollout.reward if well_formed(rollout) else min(rollout.reward, 0.0) for rollout in group]


def well_formed(rollout: Rollout) -> bool:
    """Whether every turn of the episode thinks and then speaks."""
    return all(thinks_then_says(turn) for turn in ACTIONS[rollout])


def thinks_then_says(turn: str) -> bool:
    """Whether a turn is one thought in <think> tags and a reply behind it, neither of them blank."""
    before, opened, rest = turn.partition("<think>")
    thought, closed, reply = rest.partition("</think>")
    nested = any(tag in part for part in (before, thought, reply) for tag in ("<think>", "</think>"))
    return (
        bool(opened and closed)
        and not before.strip()
        and not nested
        and bool(thought.strip())
        and bool(reply.strip())
    )
