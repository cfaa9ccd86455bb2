"""What a picture shows, in words, before the question."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.core.select import Remade
from vlrl.registry import ConfigError, register
from vlrl.stages import Select
from vlrl.types import Row

_FIELD = re.compile(r"\{(\w+)\}")


@register("infi_mmr")
@dataclass(frozen=True)
class InfiMmr(Select):
    """question = `text`, with {name} replaced by row.meta[name], then the question; the pictures stay. Rows without a named field are dropped.

    Paper: Liu et al. 2025 (Infi-MMR), arXiv:2505.23091, cross-modal reasoning adaptation: questions whose pictures are captioned in the prompt, in a
    phase before one without captions. Captions come with the rows (the paper's were written by a model); the words around them are ours.
    Edge: every row is read once.
    """

    text: str = "The picture shows: {caption}"

    def __post_init__(self) -> None:
        if not _FIELD.search(self.text):
            raise ConfigError(f"select: captioned puts meta fields into text, and {self.text!r} names none; write one as {{caption}}")

    def make(self, row: Row, copy: int) -> Row:
        caption = _FIELD.sub(lambda field: str(row.meta[field[1]]), self.text)
        return dataclasses.replace(row, question=f"{caption}\n{row.question}")

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        fields = _FIELD.findall(self.text)
        return Remade(rows, [i for i in range(len(rows)) if all(name in rows[i].meta for name in fields)], self.make)
