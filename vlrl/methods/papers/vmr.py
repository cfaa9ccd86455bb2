"""VMR: verifiable multiple-choice reformulation; an open-ended row becomes a choice between a better and a
worse response.

`vmr` is a selection of rows. Paper: Zhang et al. 2025 (VMR), arXiv:2511.02463.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.core.select import MappedRows
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Select
from vlrl.types import Row


@register("vmr")
@dataclass(frozen=True)
class Vmr(Select):
    """VMR: question + two responses in random order -> the letter of the better one (task `choice`).

    The pair is `row.meta[better]` and `row.meta[worse]`.
    Paper: Zhang et al. 2025 (VMR), arXiv:2511.02463: open-ended data as binary choices with options in random
    order, reward 1 for the better one. Its code was to be released; the words are ours. `both` gives each
    pair in both orders, so that a policy that prefers a position has accuracy 1/2. The order is drawn by the
    seed and the row's id. Reward: `mcq`. Edge: rows without a pair, or with equal responses, are dropped.
    Pictures stay.
    """

    better: str = "chosen"
    worse: str = "rejected"
    ask: str = "Which response answers this better?"
    both: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if "" in (self.better, self.worse) or self.better == self.worse:
            raise ConfigError(
                f"select: {self.name!r} needs two different meta fields, got better={self.better!r} and "
                f"worse={self.worse!r}"
            )

    def make(self, row: Row, copy: int) -> Row:
        """The row as a choice; `copy` 1 is the other order."""
        pair = (str(row.meta[self.better]), str(row.meta[self.worse]))
        swapped = random.Random(f"{self.seed}/vmr/{row.id}").random() < 0.5
        swapped = swapped != bool(copy)
        letter = "B" if swapped else "A"
        return dataclasses.replace(
            row,
            id=f"{row.id}/{'ba' if swapped else 'ab'}",
            question=f"{self.ask}\n{row.question}",
            choices=pair[::-1] if swapped else pair,
            answer=letter,
            target=f"<answer>{letter}</answer>",
            task="choice",
            rewards=(),
        )

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        pairs = ((i, rows[i].meta.get(self.better), rows[i].meta.get(self.worse)) for i in range(len(rows)))
        numbers = [
            i
            for i, better, worse in pairs
            if better is not None and worse is not None and str(better).strip() != str(worse).strip()
        ]
        return MappedRows(rows, numbers, self.make, 2 if self.both else 1)
