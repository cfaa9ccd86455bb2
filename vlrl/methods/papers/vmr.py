"""Open-ended rows as a choice between a better and a worse response."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.core.select import Remade
from vlrl.registry import ConfigError, register
from vlrl.stages import Select
from vlrl.types import Row


@register("vmr")
@dataclass(frozen=True)
class Vmr(Select):
    """question + two responses in random order -> the letter of the better one (task `choice`); the pair is `row.meta[better]`, `row.meta[worse]`.

    Paper: Zhang et al. 2025 (VMR), arXiv:2511.02463: open-ended data as binary choices with options in random order, reward 1 for the better one.
    Its code was to be released; the words are ours. `both` gives each pair in both orders, so that a preference for a place earns one half. The
    order is drawn by the seed and the row's id. Reward: `mcq`. Edge: rows without a pair, or with two equal responses, are dropped. Pictures stay.
    """

    better: str = "chosen"
    worse: str = "rejected"
    ask: str = "Which response answers this better?"
    both: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if "" in (self.better, self.worse) or self.better == self.worse:
            raise ConfigError(f"select: better_response needs two meta fields, got better={self.better!r} and worse={self.worse!r}")

    def make(self, row: Row, copy: int) -> Row:
        pair = (str(row.meta[self.better]), str(row.meta[self.worse]))
        turned = random.Random(f"{self.seed}/vmr/{row.id}").random() < 0.5
        turned = turned != bool(copy)
        return dataclasses.replace(
            row, id=f"{row.id}/{'ba' if turned else 'ab'}", question=f"{self.ask}\n{row.question}", choices=pair[::-1] if turned else pair,
            answer="B" if turned else "A", target=f"<answer>{'B' if turned else 'A'}</answer>", task="choice", rewards=(),
        )  # fmt: skip

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        pairs = ((i, rows[i].meta.get(self.better), rows[i].meta.get(self.worse)) for i in range(len(rows)))
        numbers = [i for i, better, worse in pairs if better is not None and worse is not None and str(better).strip() != str(worse).strip()]
        return Remade(rows, numbers, self.make, 2 if self.both else 1)
