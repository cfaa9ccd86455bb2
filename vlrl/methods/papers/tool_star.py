"""Tool-Star: a hierarchical reward: format first, then the answer, then a bonus for having used several tools
together.

Paper: Dong et al. 2025 (Tool-Star), arXiv:2505.16410, sec. 3.3 and eq. 5; released code:
dongguanting/Tool-Star at d12222c7, Tool_Star_RL/src/verl/verl/utils/reward_score/re_search.py
(compute_score). ARPO (dongguanting/ARPO at e257337d) uses the same reward.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.episodes import ACTIONS
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RewardShaping
from vlrl.plugins.tool_calls import last_call
from vlrl.types import Group, Rollout


@register("tool_star.hierarchical_reward")
@dataclass(frozen=True)
class ToolStarHierarchicalReward(RewardShaping):
    """Tool-Star's hierarchical reward.

        R = -1 if the format is wrong;  0 if the answer scores 0;  else answer + bonus 1[every tool of `tools`
        was called]

    `answer` and `format` are reward slots, whose raw scores are read: the format is right from the format
    reward's `correct_at` on. The total replaces the sum of the rewards. `tools` are names of tools; a call
    counts when it is written, in any turn.
    Source: dongguanting/Tool-Star at d12222c7, re_search.py, compute_score (-1, 0, F1, +0.1 for search and
    python). Edge: without `tools` there is no bonus; a rollout that a slot did not score counts as wrong in
    it.
    """

    answer: str
    format: str
    tools: tuple[str, ...] = ()
    bonus: float = 0.1
    requires = (ACTIONS,)

    def check(self, phase: PhaseContext) -> None:
        for slot in (self.answer, self.format):
            if slot not in phase.rewards:
                known = ", ".join(phase.rewards)
                raise ConfigError(f"reward_shaping: {self.name!r} reads reward {slot!r}; there are {known}")

    def __call__(self, group: Group) -> list[float]:
        return [self.reward(rollout) for rollout in group]

    def reward(self, rollout: Rollout) -> float:
        """The reward of one rollout."""
        formed = rollout.rewards.get(self.format, 0.0) >= self.run.rewards[self.format].correct_at
        score = rollout.rewards.get(self.answer, 0.0)
        if not formed or score <= 0:
            return -1.0 if not formed else 0.0
        return score + (self.bonus if self.tools and set(self.tools) <= called(rollout) else 0.0)


def called(rollout: Rollout) -> set[str]:
    """The names of the tools that the policy called."""
    calls = [last_call(text) for text in ACTIONS[rollout]]
    return {call[0] for call in calls if isinstance(call, tuple)}
