"""A bonus for answers that surprise the policy itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.registry import register
from vlrl.stages import RewardShaping
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


def surprise(rollout: Rollout) -> float:
    """-1/T sum_t log pi(y_t), over the trained tokens, in nats."""
    mask = rollout.loss_mask or [True] * len(rollout)
    logs = [logp for logp, trained in zip(rollout.signals["old_logp"], mask, strict=True) if trained]
    return -math.fsum(logs) / len(logs) if logs else 0.0


@register("cde")
@dataclass(frozen=True)
class Cde(RewardShaping):
    """r + omega_t min(|r - zero| / kappa, alpha B),  B = -1/T sum_t log pi(y_t | x, y_<t): the bonus stays a share of the reward.

    omega_t falls from `omega` by stairs: to its share (1 - k / stairs) after the k-th part of `horizon` steps (0: it never falls).
    `zero` is what counts as no reward: the paper's rewards are -1 and 1; rewards of 0 and 1 are those halved and moved, so zero 0.5 with half the
    paper's alpha is the same up to a factor, which group normalisation takes out.
    Paper: Dai et al. 2025 (CDE), arXiv:2509.09675, eq. 1 and 2; table 4: kappa 3, alpha 1, omega in stairs (which ones it does not say: `stairs`
    and `horizon` are ours). The critic's curiosity (eq. 4, 5) is left out. Edge: a rollout of reward `zero` gets nothing. Units: reward; B in nats.
    """

    kappa: float = 3.0
    alpha: float = 0.5
    omega: float = 1.0
    zero: float = 0.5
    stairs: int = 5
    horizon: int = 300
    run: Any = field(init=False, default=None, repr=False, compare=False)
    needs = ("old_logp",)

    def __post_init__(self) -> None:
        if self.kappa <= 0 or self.stairs < 1:
            raise ValueError(f"kappa, stairs: must be above 0, got {self.kappa} and {self.stairs}")

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, group: Group) -> list[float]:
        weight = self.weight(self.run.phase_step if self.run is not None else 0)
        return [r.reward + weight * min(abs(r.reward - self.zero) / self.kappa, self.alpha * surprise(r)) for r in group]

    def weight(self, step: int) -> float:
        """omega_t."""
        if not self.horizon:
            return self.omega
        return self.omega * max(0.0, 1 - step * self.stairs // self.horizon / self.stairs)
