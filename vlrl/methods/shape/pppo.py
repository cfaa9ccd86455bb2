"""A prefix is worth what its continuations are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.registry import ConfigError, register
from vlrl.stages import Shape
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("pppo")
@dataclass(frozen=True)
class ContinuationReward(Shape):
    """r_i = the mean reward of rollout i and of the continuations of its prefix (strategy `pppo`); continuations keep their own.

    Paper: Sun et al. 2025 (PPPO), arXiv:2512.15274 (continuation accumulated reward).  Deviates: the mean, not the sum, so that rollouts with and
    without continuations compare; an advantage that divides by the group's std, as the paper's, is the same.  Edge: a prefix that is the whole
    rollout keeps its reward.
    """

    def check(self, run: Run) -> None:
        if run.strategy.name != "pppo":
            raise ConfigError(f"shape pppo reads the continuations that strategy {run.strategy.name!r} does not make; use strategy: {{name: pppo}}")

    def __call__(self, group: Group) -> list[float]:
        scores: dict[int, list[float]] = {}
        for rollout in group:
            scores.setdefault(rollout.info["place"], []).append(rollout.reward)
        return [r.reward if r.source == "continuation" else sum(scores[r.info["place"]]) / len(scores[r.info["place"]]) for r in group]
