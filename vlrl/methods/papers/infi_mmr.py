"""Infi-MMR: a phase of questions whose pictures are captioned in the prompt comes before the phase without
captions.

Paper: Liu et al. 2025 (Infi-MMR), arXiv:2505.23091. The three phases are in the preset; this file has the
captioned questions of the second.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.core.select import MappedRows
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Select
from vlrl.types import Row

_FIELD = re.compile(r"\{(\w+)\}")


@register("infi_mmr")
@dataclass(frozen=True)
class InfiMmr(Select):
    """Infi-MMR's captioned questions: question = `text`, with each {name} replaced by row.meta[name], then
    the row's question.

    The pictures stay. Rows without a named meta field are dropped, so every row is read once.
    Paper: Liu et al. 2025 (Infi-MMR), arXiv:2505.23091, cross-modal reasoning adaptation: questions whose
    pictures are captioned in the prompt, in a phase before one without captions. Captions come with the rows
    (the paper's were written by a model); the words around them are ours.
    """

    text: str = "The picture shows: {caption}"

    def __post_init__(self) -> None:
        if not _FIELD.search(self.text):
            raise ConfigError(
                f"select: text={self.text!r} of 'infi_mmr' names no meta field; write one in braces, like "
                f"{{caption}}"
            )

    def captioned(self, row: Row, copy: int) -> Row:
        """The row with its caption before the question."""
        caption = _FIELD.sub(lambda match: str(row.meta[match[1]]), self.text)
        return dataclasses.replace(row, question=f"{caption}\n{row.question}")

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        names = _FIELD.findall(self.text)
        return MappedRows(
            rows, [i for i in range(len(rows)) if all(name in rows[i].meta for name in names)], self.captioned
        )
