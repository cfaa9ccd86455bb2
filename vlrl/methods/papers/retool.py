"""ReTool: a cold start on conversations with code, then reinforcement whose wrong answers gain by the number
of calls.

    retool.call_bonus     reward shaping: outcome of +1 or -1, with a bonus for calls

The cold start is rollout `expert_turns` on the traces of the rows (`row.meta["turns"]`; sec. 2.2).

Paper: Feng et al. 2025 (ReTool), arXiv:2504.11536 (outcome reward +1 or -1 alone). The bonus is that of its
reproductions: THUDM/slime at 624b824a, examples/retool/generate_with_retool.py (reward_func), which adapts
recipe/retool/retool.py of volcengine/verl at cb809d66.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.episodes import CALLS
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group, Rollout


@register("retool.call_bonus")
@dataclass(frozen=True)
class RetoolCallBonus(RewardShaping):
    """ReTool's outcome reward with a bonus for calls: +1 if correct, else min(cap, -1 + slope (calls - 2) /
    2).

    Calls are those that were answered, errors included. Other rewards are replaced. `cap` keeps every wrong
    answer below a right one however many calls it makes. Source: THUDM/slime at 624b824a,
    examples/retool/generate_with_retool.py, reward_func (cap -0.6, slope 0.1). Edge: a wrong answer without
    calls gets -1 - slope. Units: reward.
    """

    slope: float = 0.1
    cap: float = -0.6
    requires = (CALLS,)

    def __post_init__(self) -> None:
        if not -1 <= self.cap < 1 or self.slope < 0:
            raise ValueError(f"cap={self.cap} must be in [-1, 1) and slope={self.slope} must not be negative")

    def __call__(self, group: Group) -> list[float]:
        return [self.reward(rollout) for rollout in group]

    def reward(self, rollout: Rollout) -> float:
        """The reward of one rollout."""
        return 1.0 if rollout.correct else min(self.cap, -1.0 + self.slope * (CALLS[rollout] - 2) / 2)
