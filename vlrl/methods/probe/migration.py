"""What was gained and what was lost since a prompt was first seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.registry import ConfigError, register
from vlrl.types import Group

from ._judged import Judged, mean


@register("migration")
@dataclass(frozen=True, kw_only=True)
class Migration(Judged):
    """Pass rates p of rows now against those at their first visit: change by first difficulty, and support kept, found and lost.

    Over rows that were seen at least twice, with the first and the latest visit: "change/hard|middle|easy" is the mean of p_now - p_first for rows
    with p_first in [0, 1/3), [1/3, 2/3), [2/3, 1]. With S_first and S_now the rows with any right rollout: "kept" = |both| / |S_first|,
    "found" = |S_now - S_first| / |S_now|, "lost" = |S_first - S_now| / |S_first|.
    Paper: change by difficulty: arXiv:2505.14216 (the three bins are ours); support kept and lost: arXiv:2507.14843 (there with thousands of samples
    per problem; with the few of a group, "lost" is partly luck). Edge: nothing is logged before a row returns; part of the checkpoint; at most
    `rows` rows are remembered.
    """

    rows: int = 100_000
    first: dict[str, float] = field(init=False, default_factory=dict, repr=False, compare=False)
    latest: dict[str, float] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ConfigError(f"rows: {self.rows} must be 1 or more")

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        for members in self.judged(groups):
            row, rate = members[0][0].row.id, mean([float(right) for _, right in members])
            if row in self.first:
                self.latest[row] = rate
            elif len(self.first) < self.rows:
                self.first[row] = rate
        return self._numbers() if self.latest else {}

    def _numbers(self) -> dict[str, float]:
        pairs = [(self.first[row], now) for row, now in self.latest.items()]
        bins: dict[str, list[float]] = {"hard": [], "middle": [], "easy": []}
        for first, now in pairs:
            bins["hard" if first < 1 / 3 else "middle" if first < 2 / 3 else "easy"].append(now - first)
        out = {f"change/{name}": mean(changes) for name, changes in bins.items() if changes}
        before, after = sum(first > 0 for first, _ in pairs), sum(now > 0 for _, now in pairs)
        both = sum(first > 0 and now > 0 for first, now in pairs)
        if before:
            out |= {"kept": both / before, "lost": (before - both) / before}
        return {**out, **({"found": (after - both) / after} if after else {}), "rows": float(len(pairs))}

    def state_dict(self) -> dict[str, Any]:
        return {"first": dict(self.first), "latest": dict(self.latest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first.update(state["first"])
        self.latest.update(state["latest"])
