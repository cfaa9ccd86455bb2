"""Master-RM: a verifier that is not fooled by responses without content, since it was trained on such ones.

    master_rm   selection: adds openings of responses, with the label "wrong", to a verifier's training data

Paper: Zhao et al. 2025 (One Token to Fool LLM-as-a-Judge), arXiv:2507.08794, sec. 4. The attacks themselves
are `vlrl judge check`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlrl.methods.core.select import MappedRows
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Select
from vlrl.types import Row, RowView

# a sentence ends at a mark before white space, or at a line break
_END = re.compile(r"(?<=[.!?:。！？：])\s|\n")


class WithNegatives(RowView):
    """Rows, and behind them those that `made` makes of some of them."""

    def __init__(self, rows: Sequence[Row], more: Sequence[Row]) -> None:
        self.rows, self.more = rows, more

    def __len__(self) -> int:
        return len(self.rows) + len(self.more)

    def at(self, index: int) -> Row:
        return self.rows[index] if index < len(self.rows) else self.more[index - len(self.rows)]


@register("master_rm")
@dataclass(frozen=True)
class MasterRm(Select):
    """Master-RM's augmentation: for a share of the rows a copy whose response is only the first sentence of
    `meta[reasoning]` (else of the response), with `meta.label` 0 (`label`).

    Openings such as "Let's solve this problem step by step." say nothing, and a verifier must call them
    wrong. Before select `judge_rows`. Paper: Zhao et al. 2025, arXiv:2507.08794, sec. 4.1: 20,000 such
    responses, of chains of thought by another model, beside 160,000 (a share of 1/8). Edge: a response
    of one sentence, or one that names the row's answer in its first sentence, has no opening; which rows
    are drawn depends on the seed.
    """

    share: float = 0.125
    label: float = 0.0
    seed: int = 0
    response: str = "response"
    reasoning: str = "reasoning"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"select: 'master_rm': share={self.share} must be above 0 and at most 1")

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        drawn = random.Random(f"{self.seed}/master_rm").sample(range(len(rows)), len(rows))
        wanted = round(self.share * len(rows))
        numbers: list[int] = []
        for number in drawn:
            if len(numbers) == wanted:
                break
            if self.opening(rows[number]):
                numbers.append(number)
        if len(rows) and not numbers:
            raise ConfigError(
                f"select: 'master_rm' found no opening: no row has a meta.{self.response} (or "
                f"meta.{self.reasoning}) of several sentences"
            )
        return WithNegatives(rows, MappedRows(rows, numbers, lambda row, copy: self.negative(row)))

    def opening(self, row: Row) -> str:
        """The first sentence of a row's reasoning; "" where it is all of it, or has the answer."""
        text = str(row.meta.get(self.reasoning) or row.meta.get(self.response) or "").strip()
        first, *rest = _END.split(text, maxsplit=1)
        gold = str(row.answer).strip().casefold()
        said = bool(gold) and re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", first.casefold())
        return "" if not rest or said else first.strip()

    def negative(self, row: Row) -> Row:
        """The row with an opening in place of its response."""
        meta = {**row.meta, self.response: self.opening(row), "label": self.label}
        meta.pop("reason", None)
        return replace(row, id=f"{row.id}/opening", meta=meta)
