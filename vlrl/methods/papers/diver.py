"""DIVER: a diversity bonus for correct rollouts that differ from the others of their group, decayed over the
first steps.

`diver` is a reward shaping; the diversity itself is measured by the reward `group_diversity`.

Paper: Hu et al. 2025 (DIVER), arXiv:2509.26209; released code: for correct rollouts only, caps, some 100
steps with cosine decay. Deviates: the potential's telescoping terms are left out: for a reward at the end of
the rollout they are this bonus.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vlrl.plugins.capabilities import RewardSlot
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group


@register("diver")
@dataclass(frozen=True)
class Diver(RewardShaping):
    """DIVER's diversity bonus for correct rollouts.

        r + lambda_t min(cap, d) for a correct rollout,  lambda_t = weight (1 + cos(pi t / steps)) / 2, 0 from
        `steps` on

    d is the rollout's raw score in `diversity`, a slot that measures diversity (`group_diversity`), best with
    weight 0. `cap` keeps very unusual answers from gaining more. `steps` 0: no decay. Edge: other rollouts
    get no bonus.
    """

    diversity: RewardSlot
    weight: float = 0.1
    cap: float = 0.42
    steps: int = 100

    def check(self, phase: PhaseContext) -> None:
        if self.diversity not in phase.rewards:
            raise ConfigError(
                f"reward_shaping diver.diversity: no reward slot {self.diversity!r}; known: "
                f"{', '.join(phase.rewards)}"
            )

    def __call__(self, group: Group) -> list[float]:
        weight = (
            self.weight * (1 + math.cos(math.pi * min(1.0, self.run.phase_step / self.steps))) / 2
            if self.steps
            else self.weight
        )
        return [
            r.reward + weight * min(self.cap, r.rewards.get(self.diversity, 0.0)) * r.correct for r in group
        ]
