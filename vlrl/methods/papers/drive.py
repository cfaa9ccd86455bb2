"""DRIVE: GRPO on all rows with few rollouts, then on the hardest rows with many (Pre-GRPO).

`drive` is the prompt sampler of the second stage; the stages are phases (configs/methods/drive.yaml).

Paper: Zhu et al. 2025 (DRIVE), arXiv:2511.06307, sec. 3: Pre-GRPO keeps the most difficult instances throughout training.
Deviates: the paper's phases and shares are those of its data; `keep` and `min_rows` are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from vlrl.capabilities import RewardSlot
from vlrl.context import RunContext
from vlrl.methods.common.row_order import Mixture, permute
from vlrl.registry import ConfigError, register
from vlrl.stages import PromptSampler, State, transient
from vlrl.types import Group, Row


@dataclass
class DriveState(State):
    """The remaining rows (positions in `mixture`), the round, the place in the round's order, and the mean outcome of each row of this round.

    `served` maps the ids of rows that were drawn since the last step to their positions.
    """

    rows: list[int] = field(default_factory=list)
    round: int = 0
    place: int = 0
    outcomes: dict[str, float] = field(default_factory=dict)
    mixture: Any = transient()
    served: dict[str, int] = transient(factory=dict)


@register("drive")
@dataclass(frozen=True)
class Drive(PromptSampler):
    """DRIVE's Pre-GRPO: rounds over a shrinking set of rows; after a round the hardest ceil(keep * n) rows of n remain, at least `min_rows`.

    Hardest are the rows with the lowest mean outcome in the round; `slot` takes the raw score of that reward instead. Each round has an order of its
    own. All ranks learn from all groups. Reads `run.rows`.
    Edge: a call that goes beyond a round takes rows of the same set again; rows that were not scored in the round leave first; of equal rows the
    earlier ones stay.
    """

    keep: float = 0.5
    min_rows: int = 32
    slot: RewardSlot = ""

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1 or self.min_rows < 1:
            raise ConfigError(f"prompt_sampler: keep={self.keep} must be in (0, 1] and min_rows={self.min_rows} at least 1")

    def init_state(self) -> DriveState:
        return DriveState()

    def setup(self, run: RunContext) -> None:
        super().setup(run)
        state = self.state
        state.mixture = Mixture(run.rows, run.source_weights, run.seed, shuffle=False)
        state.rows = state.rows or list(range(len(state.mixture)))
        state.served.clear()

    def __call__(self, n: int) -> list[Row]:
        state = self.state
        if state.place >= len(state.rows):
            self._narrow()
        rows = []
        for _ in range(n):
            place = state.place % len(state.rows)
            position = state.rows[permute(place, len(state.rows), f"{self.run.seed}|hard_focus {state.round}")]
            state.place += 1
            row = state.mixture.row(position)
            state.served[row.id] = position
            rows.append(row)
        return rows

    def _narrow(self) -> None:
        """Begin the next round with the hardest rows of the last one."""
        state = self.state
        count = min(max(math.ceil(self.keep * len(state.rows) - 1e-9), self.min_rows), len(state.rows))
        hardest = sorted(state.rows, key=lambda position: (state.outcomes.get(str(position), math.inf), position))
        state.rows, state.round, state.place, state.outcomes = sorted(hardest[:count]), state.round + 1, 0, {}

    def end_step(self, run: RunContext) -> None:
        state = self.state
        for group in run.answered_groups:
            if len(group) and group.row.id in state.served:
                state.outcomes[str(state.served[group.row.id])] = self.mean_outcome(group)
        state.served.clear()

    def mean_outcome(self, group: Group) -> float:
        """The mean outcome of a group's rollouts, or their mean score in `slot`; 0 for a rollout without one."""
        values = [rollout.rewards.get(self.slot, 0.0) if self.slot else rollout.outcome or 0.0 for rollout in group]
        return sum(values) / len(values)

    def metrics(self) -> dict[str, float]:
        return {"data/rows": float(len(self.state.rows)), "data/round": float(self.state.round)}
