"""Rows and records that are in memory already: the sources of `GRPOTrainer` (`vlrl/api.py`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Source
from vlrl.types import Row, RowView
from vlrl_data.dataset import Dataset
from vlrl_data.records import Records
from vlrl_data.sources.files import RecordSource
from vlrl_data.sources.hub import DatasetRecords, undecoded_media

_OF_ROW = ("id", "task", "question", "answer", "target")  # columns that a row carries under their own names


@register("records_in_memory")
@dataclass(frozen=True, kw_only=True)
class RecordsInMemory(RecordSource):
    """Records in memory, a list of dicts or a `datasets.Dataset`, read as files of records are: any record
    family, media as paths or pictures.

    Set from Python only. The plain columns of a record are in its row's `meta` by their own names, where
    reward functions find them.
    """

    records: Any

    def label(self) -> str:
        return f"{len(self.records)} records"

    def open(self) -> Iterator[tuple[Records, str, str]]:
        yield self._records, ".", "row"

    @cached_property
    def _records(self) -> DatasetRecords:
        records = undecoded_media(self.records) if hasattr(self.records, "features") else self.records
        return DatasetRecords(records, "row")

    def __call__(self) -> Sequence[Row]:
        return WithOwnColumns(self.read(), self._records)


class WithOwnColumns(RowView):
    """Rows with the plain columns of their records in `meta`."""

    def __init__(self, rows: Dataset, records: Records) -> None:
        self.rows, self.records = rows, records

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, index: int) -> Row:
        row = self.rows[index]
        own = {
            key: value
            for key, value in self.records.get(self.rows.number(index)).items()
            if key not in _OF_ROW and is_plain(value)
        }
        return dataclasses.replace(row, meta={**own, **row.meta})


@register("rows_in_memory")
@dataclass(frozen=True, kw_only=True)
class RowsInMemory(Source):
    """Rows that are made already. Set from Python only."""

    rows: Any

    def __call__(self) -> Sequence[Row]:
        return list(self.rows)


def is_plain(value: Any) -> bool:
    """Whether a value is text, a number, None, or a list or mapping of these."""
    if isinstance(value, Mapping):
        return all(map(is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (str, int, float, bool))
