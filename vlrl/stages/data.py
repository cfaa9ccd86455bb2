"""Plug points of data: rows, their selection, order and prompts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlrl.stages.base import Stage
from vlrl.types import Prompt, Row


@dataclass(frozen=True, kw_only=True)
class Source(Stage):
    """Where rows come from. `weight` is its share when several are mixed (0: as many rows as it has)."""

    kind: ClassVar[str] = "source"
    home: ClassVar[str] = "vlrl_data"
    weight: float = 0.0

    @abstractmethod
    def __call__(self) -> Iterable[Row]: ...


class Select(Stage):
    """Keeps, drops or reorders rows, once, before training."""

    kind: ClassVar[str] = "select"
    home: ClassVar[str] = "vlrl.methods.select"

    @abstractmethod
    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]: ...


class Sampler(Stage):
    """Which rows come next. Must be a function of its state alone: a restart continues with the same rows."""

    kind: ClassVar[str] = "sampler"
    home: ClassVar[str] = "vlrl.methods.sampler"

    @abstractmethod
    def __call__(self, n: int) -> list[Row]: ...


class Scaffold(Stage):
    """Row to prompt: template, system prompt, hints."""

    kind: ClassVar[str] = "scaffold"
    home: ClassVar[str] = "vlrl.methods.scaffold"

    @abstractmethod
    def __call__(self, row: Row) -> Prompt: ...
