"""PAV: process rewards that measure progress, the change of a prover's chance to succeed over a step.

`pav` reads STEP_SCORES (rollout strategy `spae.probing`: how probable the answer is after each step) and
writes TOKEN_REWARDS. Paper: Setlur et al. 2024 (PAV), arXiv:2410.08146.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.common.step_scores import STEP_SCORES, add_token_rewards
from vlrl.methods.core.reward_shaping import READS_TOKEN_REWARDS, TOKEN_REWARDS
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group


@register("pav")
@dataclass(frozen=True)
class PAV(RewardShaping):
    """Progress under a prover as the reward of a step, beside the outcome.

        r_h = alpha A^mu_h,  A^mu_h = Q^mu(s_h, a_h) - Q^mu(s_{h-1}, a_{h-1})
        Q^mu = 1 - (1 - Q^pi)^K   (the prover mu is best-of-K of the policy)

    so that the policy gradient is that of the effective reward Q^pi + alpha A^mu. Q^pi after a step is its
    STEP_SCORES, before the first step the share of correct rollouts of the group; both are cut to [0, 1].
    Paper: Setlur et al. 2024 (PAV), arXiv:2410.08146, eq. 5 and sec. 4.2. Deviates: Q^pi is probed, not
    learned from roll-ins. Edge: with K = 1 the prover is the policy; a strong prover (large K) has Q near 1
    everywhere, and no step makes progress.
    """

    alpha: float = 1.0
    best_of: int = 4
    provides = (TOKEN_REWARDS,)
    requires = (STEP_SCORES, READS_TOKEN_REWARDS)

    def __post_init__(self) -> None:
        if self.best_of < 1:
            raise ConfigError(f"reward_shaping: best_of={self.best_of} of 'pav' must be 1 or more")

    def __call__(self, group: Group) -> list[float]:
        begin = sum(rollout.correct for rollout in group) / max(1, len(group))
        for rollout in group:
            steps = STEP_SCORES.get(rollout, [])
            gains = self.progress(begin, [score for _, score in steps])
            add_token_rewards(
                rollout, [(end, self.alpha * gain) for (end, _), gain in zip(steps, gains, strict=True)]
            )
        return group.rewards

    def progress(self, begin: float, chances: Sequence[float]) -> list[float]:
        """A^mu of each step, from the policy's chance before the first step and after each."""
        values = [1 - (1 - min(max(q, 0.0), 1.0)) ** self.best_of for q in (begin, *chances)]
        assert all(map(math.isfinite, values)), values
        return [after - before for before, after in zip(values, values[1:])]
