"""TON: think or not. Thought dropout in the cold start's demonstrations, so that an empty thought is a form
that the policy knows.

`ton` is a selection of rows. Paper: TON, arXiv:2505.16854.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Select
from vlrl.types import Row, RowView

_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
EMPTY = "<think>\n\n</think>"


class ThoughtDropout(RowView):
    """Rows that are made when they are read; the first thought of some demonstrations is emptied."""

    def __init__(self, rows: Sequence[Row], share: float, seed: int) -> None:
        self.rows, self.share, self.seed = rows, share, seed

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, index: int) -> Row:
        row = self.rows[index]
        # drawn by the row's id, so that order, sharding and restarts change nothing
        if random.Random(f"{self.seed}/{row.id}").random() >= self.share:
            return row
        return dataclasses.replace(row, target=_THOUGHT.sub(EMPTY, row.target, count=1))


@register("ton")
@dataclass(frozen=True)
class Ton(Select):
    """TON's thought dropout: the thought of a row's demonstration (`row.target`) becomes an empty block with
    probability `share`.

    Paper: TON, arXiv:2505.16854, algorithm 1 (the thought becomes two line breaks) and sec. 5.1 (probability
    50%).
    Edge: a demonstration without a thinking block is left as it is. The choice depends on the seed and the
    row's id alone.
    """

    share: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"share: {self.share} must lie in [0, 1]")

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        return ThoughtDropout(rows, self.share, self.seed)
