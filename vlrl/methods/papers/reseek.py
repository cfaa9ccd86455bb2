"""ReSeek: a search agent that judges what it finds and leaves useless results behind. The JUDGE action is
environment `reseek`.

    reseek   reward shaping: each verdict is paid by whether it is right

Paper: Li et al. 2025 (ReSeek), arXiv:2510.00568; checked against TencentBAC/ReSeek at d5a8330,
verl/utils/reward_score/reseek_rerank.py (compute_content_overlap_reward) and scripts/train_grpo.sh.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from vlrl.environments.tool_calls import last_call
from vlrl.methods.common.conversation import SEGMENT
from vlrl.plugins.contexts import StepContext
from vlrl.plugins.episodes import ACTIONS, EPISODE_END, TURN_PARTS
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping, State, transient
from vlrl.types import Group, Rollout

RIGHT, WRONG = ("yes_useful", "no_useless"), ("yes_useless", "no_useful")


@dataclass
class ReseekState(State):
    """(right, all) verdicts of the conversations of the current step, and their sums of the last one."""

    verdicts: list[tuple[float, float]] = transient(factory=list)
    logged: tuple[float, float] = transient((0.0, 0.0))


@register("reseek")
@dataclass(frozen=True)
class Reseek(RewardShaping):
    """ReSeek's instructive reward: the total plus one term per verdict, where the episode ended with an
    answer.

        verdict                  answer correct   answer wrong
        Yes, result useful       reward           near penalty
        Yes, result useless      reward           penalty
        No, result useless       quiet reward     quiet reward
        No, result useful        penalty          penalty

    Correct: the row's outcome. Which results are useful is stated by environment `reseek` (TURN_PARTS).
    Source: TencentBAC/ReSeek at d5a8330, reseek_rerank.py: overlap_positive_reward 0.1,
    overlap_negative_reward -0.05, factors 0.2 (`quiet`) and 0.5 (`near`). Paper: Li et al. 2025,
    arXiv:2510.00568, sec. 3 (a reward for verdicts that agree with an ideal label, a penalty for the others).
    Deviates: the release's quarter of the score for more than 10 answer tags is left out. Edge: an episode
    that was cut, or ended without an answer, keeps its total; a Yes to a useless result is paid where the
    answer is correct, as in the release. Logs `reseek/right_verdicts`, the share of verdicts that agree with
    the label.
    """

    reward: float = 0.1
    penalty: float = -0.05
    quiet: float = 0.2
    near: float = 0.5
    requires = (ACTIONS, EPISODE_END, TURN_PARTS)

    def __post_init__(self) -> None:
        if self.reward < 0 or self.penalty > 0 or not 0 <= self.quiet <= 1 or not 0 <= self.near <= 1:
            raise ValueError(
                f"reward={self.reward} must not be negative, penalty={self.penalty} not positive, "
                f"quiet={self.quiet} and near={self.near} in [0, 1]"
            )

    def init_state(self) -> ReseekState:
        return ReseekState()

    def __call__(self, group: Group) -> list[float]:
        for parts in (TURN_PARTS[rollout] for rollout in group if not SEGMENT.get(rollout, 0)):
            right, wrong = (math.fsum(parts.get(name, 0.0) for name in names) for names in (RIGHT, WRONG))
            self.state.verdicts.append((right, right + wrong))
        return [rollout.reward + (self.paid(rollout) if answered(rollout) else 0.0) for rollout in group]

    def paid(self, rollout: Rollout) -> float:
        """What the verdicts of an episode earn."""
        yes = (self.reward, self.reward) if rollout.correct else (self.near * self.penalty, self.penalty)
        each = {
            "yes_useful": yes[0],
            "yes_useless": yes[1],
            "no_useful": self.penalty,
            "no_useless": self.quiet * self.reward,
        }
        parts = TURN_PARTS[rollout]
        return math.fsum(parts.get(name, 0.0) * value for name, value in each.items())

    def end_step(self, run: StepContext) -> None:
        verdicts = run.gather_and_clear(self.state.verdicts)
        self.state.logged = (
            math.fsum(right for right, _ in verdicts),
            math.fsum(every for _, every in verdicts),
        )

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        right, every = self.state.logged
        return {"reseek/right_verdicts": right / every if every else 0.0}


def answered(rollout: Rollout) -> bool:
    """Whether the episode ended with an answer: a last turn that holds a non-empty <answer> and calls no
    tool."""
    last = ACTIONS[rollout][-1] if ACTIONS[rollout] else ""
    inside = last.rpartition("<answer>")[2].partition("</answer>")
    return (
        EPISODE_END[rollout] == "done"
        and "<answer>" in last
        and bool(inside[1])
        and bool(inside[0].strip())
        and last_call(last) is None
    )
