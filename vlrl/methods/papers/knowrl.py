"""KnowRL (arXiv:2506.19807): what a wrong answer's thinking says is checked against a knowledge base.

knowrl.passages   selection: the passages of a row's titles, for reward `factual_thinking`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlrl.beside.knowledge import Knowledge
from vlrl.methods.core.select import MappedRows
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Select
from vlrl.types import Row


@register("knowrl.passages")
@dataclass(frozen=True)
class KnowrlPassages(Select):
    """Passages by title: `meta[into]` of a row are those of all titles in `meta[title]`, "A;B;C", from the
    SQLite file `knowledge` (FActScore's table documents: title, text).

    Paper: Ren et al. 2025 (KnowRL), arXiv:2506.19807; released code: zjunlp/KnowRL at f75b0bb,
    train/main.py (column title), train/reward_function/FActScore/factscore/retrieval.py. Read when a row is
    used. Edge: a title that the file lacks adds nothing; a row without `meta[title]` raises ValueError.
    """

    knowledge: str = ""
    title: str = "title"
    into: str = "knowledge"
    separator: str = ";"

    def __post_init__(self) -> None:
        if not self.separator:
            raise ConfigError(
                "select: 'knowrl.passages': separator is empty; it stands between titles, like ;"
            )

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        if not self.knowledge:
            raise ConfigError(
                "select: 'knowrl.passages': knowledge is not set; name the SQLite file with the passages"
            )
        known = Knowledge.of(self.knowledge)
        return MappedRows(rows, range(len(rows)), lambda row, copy: self.told(row, known))

    def told(self, row: Row, known: Knowledge) -> Row:
        """The row with its passages, each under its title."""
        titles = row.meta.get(self.title)
        if not isinstance(titles, str):
            raise ValueError(
                f'row {row.id!r}: meta.{self.title} is {titles!r}, not titles as "A{self.separator}B"'
            )
        names = [name.strip() for name in titles.split(self.separator) if name.strip()]
        found = [f"{name}: {text}" for name in names for text in known.passages(name)]
        return replace(row, meta=dict(row.meta) | {self.into: found})
