"""Shorter is better among the right ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.methods.shape._length import check_alone
from vlrl.registry import register
from vlrl.stages import Shape
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("kimi_length")
@dataclass(frozen=True)
class KimiLength(Shape):
    """r + factor * l,  l = 0.5 - (n - min n) / (max n - min n); a wrong rollout gets min(0, l).  n in tokens, over the group.

    `warmup` steps of the phase without it.
    Paper: Kimi Team 2025 (k1.5), arXiv:2501.12599, sec. 2.3.3.  Edge: all lengths equal: nothing changes. Right means a reward above `threshold`.
    """

    factor: float = 1.0
    warmup: int = 0
    threshold: float = 0.5
    punishes_length = True
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def check(self, run: Run) -> None:
        check_alone(run)

    def setup(self, run: Run) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, group: Group) -> list[float]:
        lengths = [len(rollout) for rollout in group]
        spread = max(lengths) - min(lengths)
        if not spread or (self.run is not None and self.run.phase_step < self.warmup):
            return group.rewards
        bonuses = [0.5 - (n - min(lengths)) / spread for n in lengths]
        return [r + self.factor * (b if r > self.threshold else min(0.0, b)) for r, b in zip(group.rewards, bonuses)]
