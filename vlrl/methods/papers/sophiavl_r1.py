"""SophiaVL-R1's Trust-GRPO: a thinking reward that counts less where it praises wrong answers, and less over
time.

    sophiavl_r1     reward shaping: adds the thinking reward, weighted by trust and by time

Paper: Fan et al. 2025 (SophiaVL-R1), arXiv:2505.17018; checked against kxfan2002/SophiaVL-R1 at a8184947,
verl/workers/reward/custom.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RewardShaping, StepCounts
from vlrl.types import Group


@register("sophiavl_r1")
@dataclass(frozen=True)
class SophiaVLR1(RewardShaping):
    """Trust-GRPO: R_i = R_i + gamma alpha exp(-step / horizon) R_i^t, with R^t the score of reward `slot`.

        gamma = 1 if mu_c >= mu_w, else exp(mu_c - mu_w)

    mu_c and mu_w are the group's means of R^t over correct and over wrong rollouts: a thinking reward that
    rates wrong answers higher is not trusted. A group that is all correct or all wrong gets nothing. Paper:
    arXiv:2505.17018, sec. 3.3; the numbers are the release's. Deviates: it sets R^t of wrong rollouts to 0
    first (`zero_wrong`), which makes mu_w = 0 and gamma = 1 for binary outcomes. Edge: a rollout without R^t
    counts in no mean. Logs the mean gamma.
    """

    state_class = StepCounts
    slot: str = "thinking"
    alpha: float = 0.3
    horizon: float = 500.0
    zero_wrong: bool = False

    def __post_init__(self) -> None:
        if self.horizon <= 0:
            raise ValueError(f"horizon={self.horizon} must be above 0")

    def check(self, phase: PhaseContext) -> None:
        if self.slot not in phase.rewards:
            raise ConfigError(
                f"reward_shaping: {self.name!r} reads the reward {self.slot!r}, which is not there; add "
                f"rewards.{self.slot}={{name: judged_thinking, weight: 0, judge: ...}}"
            )
        if phase.rewards[self.slot].weight:
            raise ConfigError(
                f"rewards: weight={phase.rewards[self.slot].weight} of {self.slot!r} would count it twice, "
                f"since reward_shaping {self.name!r} adds it; set rewards.{self.slot}.weight=0"
            )

    def __call__(self, group: Group) -> list[float]:
        correct = [rollout.correct for rollout in group]
        if all(correct) or not any(correct):
            return group.rewards
        rated = {
            place: 0.0 if self.zero_wrong and not rollout.correct else rollout.rewards[self.slot]
            for place, rollout in enumerate(group)
            if self.slot in rollout.rewards
        }
        trust = self.trust(
            [rated[p] for p in rated if correct[p]], [rated[p] for p in rated if not correct[p]]
        )
        self.state.add(trust=trust, groups=1)
        weight = trust * self.alpha * math.exp(-self.run.phase_step / self.horizon)
        return [rollout.reward + weight * rated.get(place, 0.0) for place, rollout in enumerate(group)]

    def trust(self, of_correct: list[float], of_wrong: list[float]) -> float:
        """gamma, from the thinking rewards of the correct and of the wrong rollouts."""
        if not of_correct or not of_wrong:
            return 1.0
        gap = math.fsum(of_correct) / len(of_correct) - math.fsum(of_wrong) / len(of_wrong)
        return min(1.0, math.exp(gap))

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        trust = self.state.share("trust", "groups")
        return {"sophiavl_r1/trust": trust} if self.state.logged else {}
