"""One step as a value: `collect` fills its groups, `assign` their advantages, `learn` its sums, `end_step`
its
metrics."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vlrl.types import Group, Row


@dataclass
class ScoreCounts:
    """Rollouts of the run so far that were scored, and those that could not be."""

    scored: int = 0
    errors: int = 0

    def add(self, scored: int = 0, errors: int = 0) -> None:
        """Add to the counts."""
        self.scored += scored
        self.errors += errors

    def state_dict(self) -> dict[str, Any]:
        """The counts, for a checkpoint."""
        return {"scored": self.scored, "score_errors": self.errors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self.scored, self.errors = state["scored"], state["score_errors"]


@dataclass
class Step:
    """A step, from its rows to its numbers.

    Attributes:
        number: Counted over all phases, from 1. `phase_step` steps of its phase were done before it.
        sampled: This rank's groups, before filters; `groups` are those that it trains on.
        counts: Counters, summed over ranks for the log.
        seconds: Wall-clock seconds of its parts.
        updates: Optimizer steps so far.
        sampled_groups, answered_groups, trained_groups: All ranks' groups once it has learned.
        metrics: Its numbers once it has ended, equal on all ranks.
    """

    number: int
    phase_step: int
    sampled: list[Group] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    updates: int = 0
    sampled_groups: Sequence[Group] = ()
    answered_groups: Sequence[Group] = ()
    trained_groups: Sequence[Group] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    _first: dict[str, int] = field(default_factory=dict)  # row id -> the first rank that drew it
    _copies: dict[str, int] = field(default_factory=dict)  # row id that another rank drew first -> this rank

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the wall-clock seconds of a part of the step to `seconds`."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - begun

    def add_seconds(self, name: str, seconds: float) -> None:
        """Add to the seconds of a part."""
        self.seconds[name] += seconds

    def count_update(self) -> None:
        """Count an optimizer step."""
        self.updates += 1

    def count(self, values: Mapping[str, float]) -> None:
        """Add to the step's counters."""
        for name, value in values.items():
            self.counts[name] += value

    def shard_rows(self, rows: Sequence[Row], rank: int, world: int) -> Sequence[Row]:
        """This rank's share of the rows that all ranks drew.

        Rows that another rank has too are remembered (`row_copy`), so that each rank samples them from its
        own
        random stream.
        """
        for place, row in enumerate(rows):
            self._first.setdefault(row.id, place % world)
        self._copies |= {row.id: rank for row in rows[rank::world] if self._first[row.id] != rank}
        return rows[rank::world]

    def row_copy(self, row: Row) -> tuple[int, ...]:
        """(rank,) where another rank drew the same row first in this step, else ()."""
        return (self._copies[row.id],) if row.id in self._copies else ()
