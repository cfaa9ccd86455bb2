"""DRIVE: GRPO on all rows with few rollouts, then on the hardest rows with many (Pre-GRPO).

`drive` is the prompt sampler of the second stage; the stages are phases (configs/methods/drive.yaml).

Paper: Zhu et al. 2025 (DRIVE), arXiv:2511.06307, sec. 3.2: Pre-GRPO carries the cases with the lowest pass
rates from each phase to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.methods.common.row_order import Mixture, permute
from vlrl.plugins.capabilities import RewardSlot
from vlrl.plugins.contexts import StageContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import PromptSampler, State, transient
from vlrl.types import Group, Row


@dataclass
class DriveState(State):
    """The remaining rows (positions in `mixture`), the round, the place in the round's order, its steps so
    far, and each row's mean outcome in it.

    `served` maps the ids of rows that were drawn since the last step to their positions.
    """

    rows: list[int] = field(default_factory=list)
    round: int = 0
    place: int = 0
    steps: int = 0
    outcomes: dict[str, list[float]] = field(default_factory=dict)
    mixture: Any = transient()
    served: dict[str, int] = transient(factory=dict)


@register("drive")
@dataclass(frozen=True)
class Drive(PromptSampler):
    """DRIVE's Pre-GRPO: one pass over all rows, then the `rows[0]` hardest of them for `steps[0]` steps, of
    these the `rows[1]` hardest, and so on.

    Hardest: lowest mean outcome in the round before (`slot`: raw score of that reward). Reads `run.rows`.
    Paper: arXiv:2511.06307, sec. 3.2: 72, 50 and 25 of 175 cases for 64, 32 and 32 steps. Deviates: the paper
    does not say how the first pass rates are measured; here by the first pass, which is trained on. Edge: the
    last set stays; a call beyond a pass takes rows of the same set again; rows not scored in a round leave
    first; of equal rows the earlier stay; a set never grows.
    """

    state_class = DriveState
    rows: tuple[int, ...] = (72, 50, 25)
    steps: tuple[int, ...] = (64, 32, 32)
    slot: RewardSlot = ""

    def __post_init__(self) -> None:
        if not self.rows or len(self.rows) != len(self.steps) or min(self.rows) < 1 or min(self.steps) < 1:
            raise ConfigError(
                f"prompt_sampler: rows={list(self.rows)} and steps={list(self.steps)} must be whole "
                "numbers above 0, as many of each"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        state = self.state
        state.mixture = Mixture(run.rows, run.source_weights, run.seed, shuffle=False)
        state.rows = state.rows or list(range(len(state.mixture)))
        state.served.clear()

    def __call__(self, n: int) -> list[Row]:
        state = self.state
        if self.is_over():
            self._narrow()
        rows = []
        for _ in range(n):
            around, place = divmod(state.place, len(state.rows))
            position = state.rows[
                permute(place, len(state.rows), f"{self.run.seed}|hard_focus {state.round} {around}")
            ]
            state.place += 1
            row = state.mixture.row(position)
            state.served[row.id] = position
            rows.append(row)
        return rows

    def is_over(self) -> bool:
        """Whether the round ends: the first one with its pass, the others with their steps, the last one
        never."""
        if self.state.round == 0:
            return self.state.place >= len(self.state.rows)
        return self.state.round < len(self.rows) and self.state.steps >= self.steps[self.state.round - 1]

    def _narrow(self) -> None:
        """Begin the next round with the hardest rows of the last one."""
        state = self.state
        hardest = sorted(
            state.rows, key=lambda position: (mean_of(state.outcomes.get(str(position), ())), position)
        )
        state.rows = sorted(hardest[: self.rows[state.round]])
        state.round, state.place, state.steps, state.outcomes = state.round + 1, 0, 0, {}

    def end_step(self, run: StepContext) -> None:
        state = self.state
        for group in run.answered_groups:
            if len(group) and group.row.id in state.served:
                state.outcomes.setdefault(str(state.served[group.row.id]), []).append(
                    self.mean_outcome(group)
                )
        state.steps += 1
        state.served.clear()

    def mean_outcome(self, group: Group) -> float:
        """The mean outcome of a group's rollouts, or their mean score in `slot`; 0 for a rollout without
        one."""
        values = [
            rollout.rewards.get(self.slot, 0.0) if self.slot else rollout.outcome or 0.0 for rollout in group
        ]
        return sum(values) / len(values)

    def metrics(self) -> dict[str, float]:
        return {"data/rows": float(len(self.state.rows)), "data/round": float(self.state.round)}


def mean_of(values: Sequence[float]) -> float:
    """The mean; infinite without values, so that rows that were not scored are the easiest."""
    return sum(values) / len(values) if values else math.inf
