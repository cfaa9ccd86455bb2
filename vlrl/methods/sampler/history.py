"""Rows chosen by what an earlier phase saw of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from vlrl.methods._accuracy import accuracies, slots_of
from vlrl.methods.sampler._order import permute
from vlrl.methods.sampler._scores import SCORES, Series
from vlrl.methods.sampler.shuffle import Shuffle
from vlrl.registry import ConfigError, register
from vlrl.stages import Sampler
from vlrl.types import Group, Row

if TYPE_CHECKING:
    from vlrl.run import Run

KEY = "accuracies"


@register("recorded")
@dataclass(frozen=True)
class Recorded(Shuffle):
    """As `shuffle`; the mean accuracy of each visit of a row joins the row's memory in the run's history, for sampler `by_history`.

    `slot` is the accuracy (empty: the first reward with a weight that scored the row). vlrl original (LIMR and 1-shot RLVR write such a log).
    All ranks see all sampled groups, also those that a gate refused, so their memories are equal. Memory: one number per row and visit.
    """

    slot: str = ""
    memory: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def setup(self, run: Run) -> None:
        super().setup(run)
        self.memory.update(history=run.history, slots=slots_of(run))

    def observe(self, groups: Sequence[Group]) -> None:
        for group in groups:
            if len(group):
                values = accuracies(group, self.slot, self.memory["slots"])
                self.memory["history"].setdefault(group.row.id, {}).setdefault(KEY, []).append(sum(values) / len(values))


@register("by_history")
@dataclass(frozen=True)
class ByHistory(Sampler):
    """The rows with least <= s <= most, at most the `top` best by s (0: all), in rounds of a new order each; s is made of a row's past accuracies.

    `score`: alignment (1 - sum_k (r_k - m_k)^2 / sum_k (1 - m_k)^2, m the mean curve over rows), spread (standard deviation over visits) or accuracy
    (mean). Rows with s >= `favour` come `copies` times a round.
    Paper: Li et al. 2025 (LIMR), arXiv:2502.11886: alignment, rows with s >= 0.6; Wang et al. 2025 (1-shot RLVR), arXiv:2504.20571: spread, the top
    one, as often as a batch needs. Both scores checked against the releases (lim_selection.py, data_selection.py). Deviates: a curve has the visits
    that every row had (as 1-shot RLVR's file; LIMR fills gaps with the next epoch and drops rows without a last one).
    Edge: of equal rows the one with the smaller id is first; rows that were never visited are out. Raises ConfigError where nothing is left.
    Reads what sampler `recorded` kept; equal on all ranks. `choose` is what `vlrl data select` asks. State: the choice and the place in it.
    """

    score: Literal["alignment", "spread", "accuracy"] = "alignment"
    least: float = -math.inf
    most: float = math.inf
    top: int = 0
    favour: float = math.inf
    copies: int = 1
    _state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.score not in SCORES or self.top < 0 or self.copies < 1 or self.least > self.most:
            raise ConfigError(
                f"sampler: score={self.score!r} must be one of {', '.join(SCORES)}, top={self.top} at least 0, copies={self.copies} at least 1 and "
                f"least={self.least} not above most={self.most}"
            )

    def choose(self, series: Series) -> dict[str, float]:
        """Ids and scores of the chosen rows, the best first. Raises ConfigError where none is."""
        scores = SCORES[self.score](series)
        fit = sorted(((row, s) for row, s in scores.items() if self.least <= s <= self.most), key=lambda pair: (-pair[1], pair[0]))
        if not fit:
            found = (
                f"{len(scores)} rows have scores from {min(scores.values()):.3f} to {max(scores.values()):.3f}" if scores else "no row was visited"
            )
            raise ConfigError(f"sampler by_history: no row has a score ({self.score}) from {self.least} to {self.most}; {found}; record visits with "
                              "sampler recorded in an earlier phase, or choose other bounds")  # fmt: skip
        return dict(fit[: self.top or None])

    def setup(self, run: Run) -> None:
        self._state.update(rows=run.rows, history=run.history, seed=run.seed)

    def _choose(self) -> None:
        history: Mapping[str, Mapping[str, Any]] = self._state["history"]
        chosen = self.choose({row: memory[KEY] for row, memory in history.items() if KEY in memory})
        rows = ((source, index, row.id) for source, part in self._state["rows"].items() for index, row in enumerate(part))
        known = [([source, index], chosen[row]) for source, index, row in rows if row in chosen]
        places = [place for place, s in known for _ in range(self.copies if s >= self.favour else 1)]
        if not places:
            raise ConfigError(f"sampler by_history: the {len(chosen)} chosen rows are not among this phase's; train on the same data.train as before")
        self._state.update(chosen=places, place=0)

    def __call__(self, n: int) -> list[Row]:
        if "chosen" not in self._state:
            self._choose()
        state, out = self._state, []
        for _ in range(n):
            lap, place = divmod(state["place"], len(state["chosen"]))
            source, index = state["chosen"][permute(place, len(state["chosen"]), f"{state['seed']}|by_history {lap}")]
            state["place"] += 1
            out.append(state["rows"][source][index])
        return out

    def state_dict(self) -> dict[str, Any]:
        return {key: self._state[key] for key in ("chosen", "place") if key in self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state.update(state)

    def metrics(self) -> dict[str, float]:
        return {"data/chosen": float(len(self._state.get("chosen", ())))}
