"""Which rows are trained on, decided once before training."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl.registry import ConfigError, register
from vlrl.stages import Select
from vlrl.types import Row


class Chosen(Sequence):
    """Rows by number, still made when they are asked for."""

    def __init__(self, rows: Sequence[Row], numbers: Sequence[int]) -> None:
        self.rows, self.numbers = rows, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index):  # noqa: ANN001, ANN204
        if isinstance(index, slice):
            return Chosen(self.rows, self.numbers[index])
        return self.rows[self.numbers[index]]


@register("take")
@dataclass(frozen=True)
class Take(Select):
    """`count` of the rows: the first, or (with a `seed`) as many at random, in their order.

    vlrl original. Edge: fewer rows than `count`: all of them.
    """

    count: int
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"count: {self.count} rows; give at least 1")

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        numbers = range(min(self.count, len(rows)))
        if self.seed is not None:
            numbers = sorted(random.Random(self.seed).sample(range(len(rows)), len(numbers)))
        return Chosen(rows, numbers)


@register("pass_rate")
@dataclass(frozen=True)
class PassRate(Select):
    """Rows with low <= meta.pass_rate <= high, as stored by `vlrl data difficulty`.

    vlrl original (the band itself is common: MM-EUREKA, arXiv:2503.07365, keeps 0.1-0.9; DAPO, arXiv:2503.14476, drops 0 and 1).
    Edge: rows without a measured rate are kept or dropped as `missing` says.
    """

    low: float = 0.1
    high: float = 0.9
    missing: Literal["keep", "drop"] = "keep"

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise ConfigError(f"low={self.low}, high={self.high}: give 0 <= low <= high <= 1")

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        return Chosen(rows, [i for i in range(len(rows)) if self._fits(rows[i])])

    def _fits(self, row: Row) -> bool:
        rate = row.meta.get("pass_rate")
        return self.missing == "keep" if rate is None else self.low <= float(rate) <= self.high


@register("order")
@dataclass(frozen=True)
class Order(Select):
    """Rows sorted by a `meta` field, ascending (or descending): with `sampler: {name: shuffle, shuffle: false}` a curriculum.

    vlrl original. Edge: equal values keep their order; rows without the field come last.
    """

    by: str = "pass_rate"
    descending: bool = False

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        values = [rows[i].meta.get(self.by) for i in range(len(rows))]
        there = sorted((i for i, value in enumerate(values) if value is not None), key=lambda i: values[i], reverse=self.descending)
        return Chosen(rows, there + [i for i, value in enumerate(values) if value is None])


@register("tasks")
@dataclass(frozen=True)
class Tasks(Select):
    """Rows of the given tasks. vlrl original."""

    keep: tuple[str, ...]

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        return Chosen(rows, [i for i in range(len(rows)) if rows[i].task in self.keep])
