"""The greedy answer as baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.registry import ConfigError, register
from vlrl.stages import Advantage
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("remax")
@dataclass(frozen=True)
class ReMax(Advantage):
    """A_i = r_i - r(greedy completion of the same prompt).

    The greedy rollout is made by strategy `remax`, scored like the others, and not trained on.
    Paper: Li et al. 2023, arXiv:2310.10505, eq. 5 and algorithm 1.  Raises ValueError for a group without a greedy rollout.
    """

    def check(self, run: Run) -> None:
        if run.strategy.name != "remax":
            raise ConfigError(
                f"advantage remax needs the greedy rollout that strategy {run.strategy.name!r} does not make; use strategy: {{name: remax}}"
            )

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        result = []
        for group in groups:
            greedy = [rollout.reward for rollout in group.untrained if rollout.source == "greedy"]
            if not greedy:
                raise ValueError(f"row {group.row.id!r}: no greedy rollout in the group; use strategy: {{name: remax}}")
            result.append([r - greedy[0] for r in group.rewards])
        return result
