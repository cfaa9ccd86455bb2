"""The hardest rows stay, the others leave, round after round."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.methods.common.row_order import Mixture, permute
from vlrl.methods.core.prompt_sampler import score
from vlrl.registry import ConfigError, register
from vlrl.stages import PromptSampler
from vlrl.types import Row

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("drive")
@dataclass(frozen=True)
class Drive(PromptSampler):
    """Rounds over a set of rows, each in a new order; after a round the ceil(keep * n) rows of lowest mean reward remain, `least` at least.

    Paper: Zhu et al. 2025 (DRIVE), arXiv:2511.06307, sec. 3: Pre-GRPO keeps the most difficult instances throughout training.
    Deviates: the paper's phases and shares are its data's; `keep` and `least` are ours. `slot` names the reward that is looked at (default: the
    total). Edge: a call that reaches beyond a round takes rows of the same set again; rows that were never scored leave first; of equal rows the
    earlier stay. All ranks learn from all groups. Reads `run.rows`. State: the set, its order's place, the rewards of the round.
    """

    keep: float = 0.5
    least: int = 32
    slot: str = ""
    _state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1 or self.least < 1:
            raise ConfigError(f"prompt_sampler: keep={self.keep} must be in (0, 1] and least={self.least} at least 1")

    def setup(self, run: RunContext) -> None:
        mixture = Mixture(run.rows, run.source_weights, run.seed, shuffle=False)
        for key, value in {"rows": list(range(len(mixture))), "round": 0, "place": 0, "seen": {}}.items():
            self._state.setdefault(key, value)
        self._state.update(mixture=mixture, seed=run.seed, served={})

    def __call__(self, n: int) -> list[Row]:
        state = self._state
        if state["place"] >= len(state["rows"]):
            self._narrow()
        rows = []
        for _ in range(n):
            place = state["place"] % len(state["rows"])
            position = state["rows"][permute(place, len(state["rows"]), f"{state['seed']}|hard_focus {state['round']}")]
            state["place"] += 1
            row = state["mixture"].row(position)
            state["served"][row.id] = position
            rows.append(row)
        return rows

    def _narrow(self) -> None:
        state = self._state
        count = min(max(math.ceil(self.keep * len(state["rows"]) - 1e-9), self.least), len(state["rows"]))
        hardest = sorted(state["rows"], key=lambda position: (state["seen"].get(str(position), math.inf), position))
        state.update(rows=sorted(hardest[:count]), round=state["round"] + 1, place=0, seen={})

    def end_step(self, run: RunContext) -> None:
        groups = run.answered_groups
        for group in groups:
            if len(group) and group.row.id in self._state["served"]:
                self._state["seen"][str(self._state["served"][group.row.id])] = score(group, self.slot)
        self._state["served"].clear()

    def state_dict(self) -> dict[str, Any]:
        return {key: self._state[key] for key in ("rows", "round", "place", "seen") if key in self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state.update(state)

    def metrics(self) -> dict[str, float]:
        return {"data/rows": float(len(self._state["rows"])), "data/round": float(self._state["round"])}
