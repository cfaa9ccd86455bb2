"""SvS's reward of a written problem, by how often the policy solves it."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout

SOLVE_RATE: Annotation[float] = Annotation(
    "svs.solve_rate",
    float,
    hint="rollout: {name: svs}",
    doc="share of correct solutions of the problem that the rollout wrote; 0 without a problem",
)


@register("solve_rate")
@dataclass(frozen=True, kw_only=True)
class SolveRate(Reward):
    """SvS's reward of a written problem: 1 if low <= solve rate <= high, else 0, also for a rollout without a
    problem.

    Paper: Liang et al. 2025 (SvS), arXiv:2508.14029, eq. 4; release: MasterVito/SvS at 9fd8f353,
    scripts/run_svs_qwen2.5_3b.sh (positive_synthesis_acc_lower 0.125, upper 0.625). Range: 0 or 1. Raises
    ValueError for bounds out of order, KeyError without the rollout strategy `svs`, which measures the rate.
    """

    requires = (SOLVE_RATE,)
    low: float = 0.125
    high: float = 0.625

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < 1:
            raise ValueError(f"0 < low={self.low} <= high={self.high} < 1 is needed")

    def __call__(self, rollout: Rollout) -> float:
        return float(self.low <= SOLVE_RATE[rollout] <= self.high)
