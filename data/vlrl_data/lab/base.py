"""What the lab tasks share: rows made on demand, each a pure function of (task, seed, split, index)."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vlrl.registry import ConfigError
from vlrl.stages import Source
from vlrl.types import Row, RowView
from vlrl_data.lab.real import check_split


class Rows(RowView):
    """`size` rows, made by `make(index)` when they are asked for."""

    def __init__(self, size: int, make: Callable[[int], Row]) -> None:
        self.size = size
        self.make = make

    def __len__(self) -> int:
        return self.size

    def at(self, index: int) -> Row:
        return self.make(index)


@dataclass(frozen=True, kw_only=True)
class Lab(Source):
    """A task with unlimited rows: `count` of them, of the real pictures of `split`. `task` calls them by another name, for figures of their own."""

    split: str = "train"
    seed: int = 0
    count: int = 1000
    task: str = ""

    def __post_init__(self) -> None:
        check_split(self.split)
        if self.count < 1:
            raise ConfigError(f"count: {self.count} rows asked for; give at least 1")

    def __call__(self) -> Sequence[Row]:
        return Rows(self.count, self.as_task)

    def as_task(self, index: int) -> Row:
        """Row `index` under this source's `task`, if it has one."""
        row = self.row(index)
        return replace(row, task=self.task) if self.task else row

    def rng(self, index: int) -> random.Random:
        """Randomness of row `index`: the same in every process, on every machine."""
        return random.Random(f"{self.name}|{self.seed}|{self.split}|{index}")

    def id(self, index: int) -> str:
        return f"{self.name}-{self.split}-{self.seed}-{index}"

    @abstractmethod
    def row(self, index: int) -> Row: ...


def demonstrate(answer: str) -> str:
    """A demonstration in the lab's answer format."""
    return f"<answer>{answer}</answer>"
