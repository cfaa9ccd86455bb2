"""Figures that are means of scores, or means of means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.eval.scorer import Aggregate, Record, ScoredResponse
from vlrl.registry import register


def values_of(record: Record, path: str) -> list[str]:
    """The value at a dotted path, as text; a list gives one entry per label. A missing field gives none."""
    value: Any = record
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return []
        value = value[part]
    if value is None:
        return []
    return [str(label) for label in value] if isinstance(value, (list, tuple)) else [str(value)]


def mean(scores: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return sum(scores) / len(scores) if scores else 0.0


def by_group(records: Sequence[Record], scored: Sequence[ScoredResponse], path: str) -> dict[str, list[float]]:
    """Scores by the value at `path`, in order of first appearance; a row with several labels counts under each."""
    groups: dict[str, list[float]] = {}
    for record, entry in zip(records, scored, strict=True):
        for value in values_of(record, path):
            groups.setdefault(value, []).append(entry.score)
    return groups


@register("mean")
@dataclass(frozen=True)
class Mean(Aggregate):
    """overall = mean of all scores; every field in `by` adds the means of its values.

    Paper: vlrl original. Edge: no rows give 0; a row without the field counts only in the overall figure.
    """

    by: tuple[str, ...] = ()

    def __call__(self, records: Sequence[Record], scored: Sequence[ScoredResponse]) -> dict[str, float]:
        out = {"overall": mean([entry.score for entry in scored])}
        for path in self.by:
            for value, scores in by_group(records, scored, path).items():
                out[f"{path.rpartition('.')[2]}/{value}"] = mean(scores)
        return out

    def paths(self, records: Sequence[Record]) -> list[tuple[str, ...]]:
        return [()] * len(records)


@register("nested_mean")
@dataclass(frozen=True)
class NestedMean(Aggregate):
    """overall = mean over the groups of the first level of the mean over the groups of the next ... of the mean score.

    Paper: vlrl original; the macro averages of VSI-Bench (arXiv:2412.14171), MMStar, MLVU and CV-Bench. `merge` renames values of the
    first level (three direction tasks become one). Edge: a group without rows is left out, so a part of a benchmark is an average of what it has.
    """

    levels: tuple[str, ...] = ()
    merge: Mapping[str, str] = field(default_factory=dict)

    def paths(self, records: Sequence[Record]) -> list[tuple[str, ...]]:
        """The groups of each row, outermost first."""
        out = []
        for record in records:
            values = [next(iter(values_of(record, level)), "none") for level in self.levels]
            out.append((self.merge.get(values[0], values[0]), *values[1:]) if values else ())
        return out

    def __call__(self, records: Sequence[Record], scored: Sequence[ScoredResponse]) -> dict[str, float]:
        paths = self.paths(records)
        scores = [entry.score for entry in scored]
        out = {"overall": self._fold(paths, scores, 0)}
        first: dict[str, list[int]] = {}
        for i, path in enumerate(paths):
            first.setdefault(path[0] if path else "all", []).append(i)
        for name, members in first.items():
            out[name] = self._fold([paths[i] for i in members], [scores[i] for i in members], 1)
        return out

    def _fold(self, paths: list[tuple[str, ...]], scores: list[float], depth: int) -> float:
        if depth == len(self.levels):
            return mean(scores)
        groups: dict[str, list[int]] = {}
        for i, path in enumerate(paths):
            groups.setdefault(path[depth], []).append(i)
        return mean([self._fold([paths[i] for i in members], [scores[i] for i in members], depth + 1) for members in groups.values()])
