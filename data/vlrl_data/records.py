"""Records (plain mappings) of dataset files by number, without reading the files into memory.

JSON lines are found through an index of line starts; parquet, CSV and arrow are memory-mapped arrow tables (parquet and CSV converted once, into the
disk cache). Ten million records open in seconds and take memory only when they are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from vlrl.registry import ConfigError
from vlrl_data.cache import DiskCache, default_cache
from vlrl_data.media import digest

BLOCK = 1 << 24


class BadRecord(ValueError):
    """A record that cannot be read, with the place it stands at."""


class Records(Protocol):
    """Random access. `get` raises BadRecord; `place` names a record for messages."""

    def __len__(self) -> int: ...

    def get(self, index: int) -> Any: ...

    def place(self, index: int) -> str: ...


class Lines:
    """A JSONL file. Empty lines are no records, yet count for line numbers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.starts, self.numbers, self.size = _line_starts(path)
        self._handle: int | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def place(self, index: int) -> str:
        return f"{self.path}:{index + 1 if self.numbers is None else self.numbers[index]}"

    def get(self, index: int) -> Any:
        if self._handle is None:
            self._handle = os.open(self.path, os.O_RDONLY)
        start = int(self.starts[index])
        end = int(self.starts[index + 1]) if index + 1 < len(self.starts) else self.size
        try:
            return json.loads(os.pread(self._handle, end - start, start))  # not mapped: pages read would count as our memory
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            detail = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise BadRecord(f"{self.place(index)}: broken JSON: {detail}") from None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_handle": None}

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            os.close(self._handle)


def _line_starts(path: Path) -> tuple[np.ndarray, np.ndarray | None, int]:
    """Byte offsets and 1-based numbers (None: all lines) of the lines that are not blank, and the file's size."""
    breaks, at = [np.array([-1])], 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            breaks.append(np.flatnonzero(np.frombuffer(block, np.uint8) == 10) + at)
            at += len(block)
    ends = np.concatenate(breaks)
    if ends[-1] != at - 1:
        ends = np.append(ends, at)
    starts, lengths = ends[:-1] + 1, np.diff(ends) - 1
    keep = lengths > 0
    if keep.any() and (lengths[keep] < 8).any():
        keep &= ~_blank(path, starts, lengths, keep & (lengths < 8))
    return starts[keep], None if keep.all() else np.flatnonzero(keep) + 1, at


def _blank(path: Path, starts: np.ndarray, lengths: np.ndarray, which: np.ndarray) -> np.ndarray:
    blank = np.zeros(len(starts), bool)
    with path.open("rb") as file:
        for index in np.flatnonzero(which):
            file.seek(int(starts[index]))
            blank[index] = not file.read(int(lengths[index])).strip()
    return blank


class Listed:
    """A JSON file that holds one list (or a mapping of lists, or of id to record)."""

    def __init__(self, path: Path, items: Sequence[Any]) -> None:
        self.path, self.items = path, items

    def __len__(self) -> int:
        return len(self.items)

    def place(self, index: int) -> str:
        return f"{self.path}[{index}]"

    def get(self, index: int) -> Any:
        return self.items[index]


def open_json(path: Path) -> Records:
    """A .json file: a list, or JSON lines under the wrong name. Raises ConfigError with line and column where it is broken."""
    try:
        content = json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        lines = Lines(path)
        if len(lines) > 1 and _parses(lines, 0):
            return lines
        raise ConfigError(f"{path}: broken JSON: {error}") from None
    if isinstance(content, Mapping):
        lists = [value for value in content.values() if isinstance(value, list)]
        content = lists[0] if len(lists) == 1 else [content]
    if not isinstance(content, list):
        raise ConfigError(f"{path}: expected a list of records, got {type(content).__name__}")
    return Listed(path, content)


def _parses(lines: Lines, index: int) -> bool:
    try:
        return isinstance(lines.get(index), dict)
    except BadRecord:
        return False


class Table:
    """A memory-mapped arrow table."""

    def __init__(self, path: Path, shown: Path) -> None:
        self.path, self.shown = path, shown
        self._table: Any = None
        self.count = self.table.num_rows

    @property
    def table(self) -> Any:
        if self._table is None:
            import pyarrow as pa

            source = pa.memory_map(str(self.path))
            try:
                self._table = pa.ipc.open_file(source).read_all()
            except pa.ArrowInvalid:  # `datasets` writes the streaming form
                self._table = pa.ipc.open_stream(source).read_all()
        return self._table

    def __len__(self) -> int:
        return self.count

    def place(self, index: int) -> str:
        return f"{self.shown}#{index}"

    def get(self, index: int) -> Any:
        return self.table.slice(index, 1).to_pylist()[0]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_table": None}


def write_arrow(target: Path, batches: Iterable[Any], schema: Any) -> None:
    """Record batches to an arrow file, one at a time."""
    import pyarrow as pa

    with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write(batch)


def _parquet(path: Path, target: Path) -> None:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    write_arrow(target, file.iter_batches(batch_size=4096), file.schema_arrow)


def _csv(path: Path, target: Path) -> None:
    import pyarrow.csv as pc

    delimiter = "\t" if path.suffix == ".tsv" else ","
    reader = pc.open_csv(path, parse_options=pc.ParseOptions(delimiter=delimiter, newlines_in_values=True))
    write_arrow(target, reader, reader.schema)


def _converted(path: Path, convert: Callable[[Path, Path], None], cache: DiskCache) -> Table:
    import pyarrow as pa

    stat = path.stat()
    key = digest("table", str(path.resolve()), repr((stat.st_size, stat.st_mtime_ns)))
    try:
        return Table(cache.get(key, lambda target: convert(path, target), ".arrow"), path)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path}: cannot be read as {path.suffix}: {error}") from None


class _Joined(NamedTuple):
    records: Records
    start: int


class Joined:
    """Several files, one after the other."""

    def __init__(self, parts: Sequence[Records]) -> None:
        self.parts = parts
        self.ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def part(self, index: int) -> int:
        """Which file a record is in."""
        return int(np.searchsorted(self.ends, index, side="right"))

    def _find(self, index: int) -> _Joined:
        part = self.part(index)
        return _Joined(self.parts[part], int(self.ends[part]) - len(self.parts[part]))

    def place(self, index: int) -> str:
        records, start = self._find(index)
        return records.place(index - start)

    def get(self, index: int) -> Any:
        records, start = self._find(index)
        return records.get(index - start)


OPENERS: dict[str, Callable[[Path], Records]] = {
    ".jsonl": Lines,
    ".ndjson": Lines,
    ".json": open_json,
    ".arrow": lambda path: Table(path, path),
    ".feather": lambda path: Table(path, path),
    ".parquet": lambda path: _converted(path, _parquet, default_cache()),
    ".csv": lambda path: _converted(path, _csv, default_cache()),
    ".tsv": lambda path: _converted(path, _csv, default_cache()),
}


def open_records(path: Path) -> Records:
    """A file by its ending. Raises ConfigError for an unknown one."""
    opener = OPENERS.get(path.suffix.lower())
    if opener is None:
        raise ConfigError(f"path: {path} has an ending that is not known. Known: {', '.join(OPENERS)} (folders: source `folder`; tar: `webdataset`).")
    if not path.stat().st_size:
        raise ConfigError(f"path: {path} is empty")
    return opener(path)
