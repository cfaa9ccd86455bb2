"""CSV and TSV files: every field is the text that the file holds, no type is guessed.

A file is converted once into an arrow file in the disk cache: its columns as bytes, the line of each record,
and why a record cannot be used (too few fields, a quote that is never closed).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlrl.plugins.registry import ConfigError
from vlrl_data.parquet import write_arrow

BATCH = 10_000  # records converted at a time
LONGEST = 1 << 30  # characters of a field
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:e[-+]\d\d+)?")


def as_number(text: Any) -> Any:
    """The number that a text is the usual spelling of ("7", "0.25"), else the value as it is ("02139",
    "1.50", "1e10", 20 digits): what is converted reads back as the same text."""
    if not isinstance(text, str) or len(text) > 18 or not NUMBER.fullmatch(text):
        return text
    number = float(text) if "." in text or "e" in text else int(text)
    return number if str(number) == text else text


def convert(path: Path, target: Path) -> None:
    """A CSV or TSV file to an arrow file of the columns "line", "fault", and 0, 1, ... in the order of the
    header, which is kept as the schema's metadata. Raises ConfigError for a header that cannot be used."""
    import pyarrow as pa

    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        longest = csv.field_size_limit(LONGEST)
        try:
            reader = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
            names: list[str] = _header(path, reader)
            fields = [pa.field(str(place), pa.binary()) for place in range(len(names))]
            head = {"names": "\x00".join(names).encode("utf-8", "surrogateescape")}
            schema = pa.schema(
                [pa.field("line", pa.int64()), pa.field("fault", pa.string()), *fields], metadata=head
            )
            write_arrow(target, _batches(reader, names, schema), schema)
        finally:
            csv.field_size_limit(longest)


def _header(path: Path, reader: Any) -> list[str]:
    try:
        names: list[str] = next(reader, [])
    except csv.Error as error:
        raise ConfigError(f"{path}: its header cannot be read: {error}") from None
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise ConfigError(f"{path}: two columns are called {twice!r}; rename one")
    return names


def _batches(reader: Any, names: list[str], schema: Any) -> Iterator[Any]:
    import pyarrow as pa

    rows: list[tuple[Any, ...]] = []
    for row in _rows(reader, names):
        rows.append(row)
        if len(rows) == BATCH:
            yield pa.record_batch([list(column) for column in zip(*rows)], schema=schema)
            rows = []
    if rows:
        yield pa.record_batch([list(column) for column in zip(*rows)], schema=schema)


def _rows(reader: Any, names: list[str]) -> Iterator[tuple[Any, ...]]:
    """(line, fault, field, field, ...) of each record; fields are bytes. Blank lines are no records."""
    nothing = (None,) * len(names)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cut = "a quote that is never closed" if "unexpected end" in str(error) else str(error)
            yield line, f"broken CSV: {cut}", *nothing
            continue
        if not row:
            continue
        if len(row) != len(names):
            yield line, f"{len(row)} fields, where the header has {len(names)}", *nothing
            continue
        yield line, None, *(field.encode("utf-8", "surrogateescape") for field in row)
