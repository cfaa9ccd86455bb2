"""CDE: curiosity-driven exploration, a bonus for rollouts with a high perplexity under the policy.

`cde` is a reward shaping: the actor's curiosity. The critic's curiosity (several value heads, eq. 4 and 5) is
left out.

Paper: Dai et al. 2025 (CDE), arXiv:2509.09675, eq. 1 and 2; table 4: kappa 3, alpha 1, omega decays in a
staircase (its steps are not given: `stairs` and `horizon` are ours).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group, Rollout


@register("cde")
@dataclass(frozen=True)
class Cde(RewardShaping):
    """CDE's perplexity bonus, bounded by a share of the reward.

        r + omega_t min(|r - zero| / kappa, alpha B),  B = -1/T sum_t log pi(y_t | x, y_<t)

    omega_t is a staircase: `omega` (1 - k / stairs) after the k-th part of `horizon` steps of the phase
    (horizon 0: constant). `zero` is the reward that counts as none. The paper's rewards are -1 and 1; rewards
    of 0 and 1 are these shifted and halved, so zero 0.5 with half the paper's alpha is the same up to a
    factor, which group normalisation removes.
    Edge: a rollout of reward `zero` gets no bonus. Units: reward; B in nats.
    """

    kappa: float = 3.0
    alpha: float = 0.5
    omega: float = 1.0
    zero: float = 0.5
    stairs: int = 5
    horizon: int = 300
    needs = ("old_logp",)

    def __post_init__(self) -> None:
        if self.kappa <= 0 or self.stairs < 1:
            raise ValueError(f"kappa={self.kappa} must be above 0 and stairs={self.stairs} at least 1")

    def __call__(self, group: Group) -> list[float]:
        weight = self.weight(self.run.phase_step)
        return [
            r.reward + weight * min(abs(r.reward - self.zero) / self.kappa, self.alpha * mean_surprisal(r))
            for r in group
        ]

    def weight(self, step: int) -> float:
        """omega_t."""
        if not self.horizon:
            return self.omega
        return self.omega * max(0.0, 1 - step * self.stairs // self.horizon / self.stairs)


def mean_surprisal(rollout: Rollout) -> float:
    """-1/T sum_t log pi(y_t) over the trained tokens, in nats."""
    logs = [
        logp
        for logp, trained in zip(rollout.signals["old_logp"], rollout.trained_mask, strict=True)
        if trained
    ]
    return -math.fsum(logs) / len(logs) if logs else 0.0
