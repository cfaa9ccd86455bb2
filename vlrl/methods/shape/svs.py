"""A problem that the policy wrote is worth something if it is neither trivial nor beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.registry import ConfigError, register
from vlrl.stages import Shape
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("svs")
@dataclass(frozen=True)
class MiddlingProblems(Shape):
    """Problems that strategy `svs` let the policy write: r = 1 if low <= solve rate <= high, else 0 (also for no problem); others keep theirs.

    Paper: Liang et al. 2025 (SvS), arXiv:2508.14029, eq. 4; low 0.125 and high 0.625 as in published notes on the paper and its code.
    """

    low: float = 0.125
    high: float = 0.625

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < 1:
            raise ValueError(f"0 < low={self.low} <= high={self.high} < 1 is needed")

    def check(self, run: Run) -> None:
        if run.strategy.name != "svs":
            raise ConfigError(f"shape svs pays for problems that strategy {run.strategy.name!r} does not let write; use strategy: {{name: svs}}")

    def __call__(self, group: Group) -> list[float]:
        return [float(self.low <= r.info["solve_rate"] <= self.high) if "solve_rate" in r.info else r.reward for r in group]
