"""G-RA: gated reward accumulation for long conversations. A reward of lower priority counts only where those
of higher priority are good enough.

Paper: Stabilizing Long-Term Multi-Turn Reinforcement Learning with Gated Rewards (G-RA), arXiv:2508.10548,
sec. 3. No released code was found.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RewardShaping, StepCounts
from vlrl.types import Group


@register("g_ra")
@dataclass(frozen=True)
class GRa(RewardShaping):
    """G-RA's gated accumulation over reward slots in order of priority.

        R = w_1 r_1 + 1[r_1 >= d_1] (w_2 r_2 + 1[r_2 >= d_2] (w_3 r_3 + ...))

    `levels` are (reward slot, threshold d), highest priority first (the outcome, then step rewards); the last
    threshold gates nothing. r is the raw score, w the slot's weight. Slots that are not named count as they
    are. Summing all of them (plain accumulation) pays for steps of failed conversations, which the policy
    learns to farm.
    Paper: arXiv:2508.10548, sec. 3 (two levels: the outcome, and rewards of single turns). Edge: a slot that
    did not score a rollout counts 0 and is closed. Logs the share of rollouts with a closed gate.
    """

    state_class = StepCounts
    levels: tuple[tuple[str, float], ...] = ()

    def check(self, phase: PhaseContext) -> None:
        unknown = [slot for slot, _ in self.levels if slot not in phase.rewards]
        if unknown or len(self.levels) < 2:
            raise ConfigError(
                f"reward_shaping: 'g_ra' levels={self.levels} must name two or more reward slots, highest "
                "priority first; "
                f"there are {', '.join(phase.rewards)}"
            )

    def __call__(self, group: Group) -> list[float]:
        totals = []
        for rollout in group:
            total, is_open = rollout.reward, True
            for slot, threshold in self.levels:
                if not is_open:
                    total -= self.run.rewards[slot].weight * rollout.rewards.get(slot, 0.0)
                is_open = is_open and rollout.rewards.get(slot, -float("inf")) >= threshold
            first = self.levels[0]
            self.state.add(closed=rollout.rewards.get(first[0], -float("inf")) < first[1], seen=1)
            totals.append(total)
        return totals

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        return {"g_ra/closed": self.state.share("closed", "seen")} if self.state.logged else {}
