"""An optimizer without a past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.registry import register
from vlrl.stages import Callback
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("optimizer_reset")
@dataclass(frozen=True)
class OptimizerReset(Callback):
    """Forgets the optimizer's moments after every `every`-th step.

    Paper: Kimi Team 2025 (k1.5), arXiv:2501.12599, sec. 2.3.2: each iteration of mirror descent is a new problem.
    """

    every: int = 1

    def __call__(self, run: Run, groups: Sequence[Group]) -> dict[str, float]:
        due = (run.phase_step + 1) % max(self.every, 1) == 0
        if due:
            run.optimizer.state.clear()
        return {}
