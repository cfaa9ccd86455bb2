"""Records (plain mappings) of dataset files by number, without reading the files into memory.

JSON lines are found through an index of line starts, parquet files are read by blocks (`parquet.py`), arrow
files are memory-mapped, CSV files are converted once into the disk cache (`text_table.py`), compressed ones
(.gz, .bz2, .zst) unpacked there. Ten million records open in seconds; a record takes memory only while it is
read. Values are those of the file (`plain_values.py`).

A fault of one record (broken JSON, a byte that is not UTF-8, nesting or integers beyond what Python parses)
is a `BadRecord`; a fault of a whole file (an unknown suffix, UTF-16, a container that is cut short) is a
`ConfigError`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vlrl.plugins.registry import ConfigError
from vlrl_data import text_table
from vlrl_data.disk_cache import EXHAUSTED, DiskCache, default_cache
from vlrl_data.media.images import digest
from vlrl_data.parquet import BlockError, ParquetFile
from vlrl_data.plain_values import plain_row

BLOCK_BYTES = 1 << 24
TEXT_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}  # suffix -> pyarrow's name of the compression
MAX_EXPANSION = 1000  # times that a compressed file may grow, where it becomes larger than
UNPACKED_ANYWAY = 1 << 30  # bytes


class BadRecord(ValueError):
    """A record that cannot be read; the message starts with its location."""


class Records(Protocol):
    """Random access to records. `get` raises BadRecord; `location` names a record for messages."""

    def __len__(self) -> int: ...

    def get(self, index: int) -> Any: ...

    def location(self, index: int) -> str: ...


def json_fault(error: Exception, data: bytes) -> str:
    """Why `data` is no JSON that can be read, from the error that `json.loads` raised."""
    if isinstance(error, UnicodeDecodeError):
        byte = data[error.start]
        latin = bytes([byte]).decode("latin-1")
        return (
            f"not UTF-8: byte 0x{byte:02X} at byte {error.start + 1} (Latin-1 reads it as {latin!r}); "
            "convert the file to UTF-8"
        )
    if isinstance(error, RecursionError):
        return "JSON that is nested too deeply to be read"
    if isinstance(error, json.JSONDecodeError):
        ends = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string")
        cut = ", where it ends: it is cut short" if ends else ""
        return (
            f"broken JSON: {error.msg}, {f'line {error.lineno}, ' if error.lineno > 1 else ''}column "
            f"{error.colno}{cut}"
        )
    if "integer string conversion" in str(error):
        return "an integer of more digits than Python parses (4,300); write it as text"
    return f"broken JSON: {error}"


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises ValueError where it has a field twice: nobody knows which one is meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {next(n for n in names if names.count(n) > 1)!r} is there twice")
    return found


class JsonLines:
    """A JSONL file. Empty lines are no records, but count for line numbers. `shown` is the file that messages
    name: the one it was unpacked from."""

    def __init__(self, path: Path, shown: Path | None = None) -> None:
        self.path, self.shown = path, shown or path
        self.starts, self.numbers, self.size = _line_starts(path)

    def __len__(self) -> int:
        return len(self.starts)

    def location(self, index: int) -> str:
        return f"{self.shown}:{index + 1 if self.numbers is None else self.numbers[index]}"

    def get(self, index: int) -> Any:
        start = int(self.starts[index])
        end = int(self.starts[index + 1]) if index + 1 < len(self.starts) else self.size
        line = read_at(self.path, start, end - start).rstrip(b"\r\n")
        try:
            return json.loads(line.decode("utf-8-sig"), object_pairs_hook=_fields)
        except (ValueError, RecursionError) as error:
            raise BadRecord(f"{self.location(index)}: {json_fault(error, line)}") from None


def read_at(path: Path, start: int, size: int) -> bytes:
    """Up to `size` bytes of a file. Nothing stays open or mapped: a dataset may have more files than a
    process may open."""
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.pread(handle, size, start)
    finally:
        os.close(handle)


def _line_starts(path: Path) -> tuple[np.ndarray, np.ndarray | None, int]:
    """Byte offsets and 1-based numbers (None: all lines) of the lines that are not blank, and the file's
    size."""
    breaks, at = [np.array([-1])], 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            breaks.append(np.flatnonzero(np.frombuffer(block, np.uint8) == 10) + at)
            at += len(block)
    ends = np.concatenate(breaks)
    if ends[-1] != at - 1:
        ends = np.append(ends, at)
    starts, lengths = ends[:-1] + 1, np.diff(ends) - 1
    keep = lengths > 0
    if keep.any() and (lengths[keep] < 8).any():
        keep &= ~_blank_lines(path, starts, lengths, keep & (lengths < 8))
    return starts[keep], None if keep.all() else np.flatnonzero(keep) + 1, at


def _blank_lines(path: Path, starts: np.ndarray, lengths: np.ndarray, which: np.ndarray) -> np.ndarray:
    blank = np.zeros(len(starts), bool)
    with path.open("rb") as file:
        for index in np.flatnonzero(which):
            file.seek(int(starts[index]))
            blank[index] = not file.read(int(lengths[index])).strip()
    return blank


class RecordList:
    """A JSON file that holds one list (or a mapping of lists, or of id to record)."""

    def __init__(self, path: Path, items: Sequence[Any]) -> None:
        self.path, self.items = path, items

    def __len__(self) -> int:
        return len(self.items)

    def location(self, index: int) -> str:
        return f"{self.path}[{index}]"

    def get(self, index: int) -> Any:
        return self.items[index]


def open_json(path: Path, shown: Path) -> Records:
    """A .json file: a list, or JSON lines under the wrong suffix. Raises ConfigError with line and column
    where it is broken."""
    data = path.read_bytes()
    try:
        content = json.loads(data, object_pairs_hook=_fields)
    except (ValueError, RecursionError) as error:
        lines = JsonLines(path, shown)
        if len(lines) > 1 and _is_record(lines, 0):
            return lines
        raise ConfigError(f"{shown}: {json_fault(error, data)}") from None
    if isinstance(content, Mapping):
        lists = [value for value in content.values() if isinstance(value, list)]
        content = lists[0] if len(lists) == 1 else [content]
    if not isinstance(content, list):
        raise ConfigError(f"{shown}: expected a list of records, got {type(content).__name__}")
    return RecordList(shown, content)


def _is_record(lines: JsonLines, index: int) -> bool:
    try:
        return isinstance(lines.get(index), dict)
    except BadRecord:
        return False


@contextmanager
def bad_values(location: str) -> Iterator[None]:
    """Values of an arrow table that Python cannot hold raise BadRecord."""
    try:
        yield
    except BlockError as error:
        raise BadRecord(f"{location}: {error}") from None
    except UnicodeDecodeError as error:
        raise BadRecord(f"{location}: {json_fault(error, error.object)}") from None
    except (ValueError, OverflowError) as error:  # times and numbers outside Python's range
        raise BadRecord(f"{location}: a value cannot be read: {error}") from None


class ArrowTable:
    """A memory-mapped arrow table. `shown` is the file that messages name: the one it was converted from."""

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

    def location(self, index: int) -> str:
        return f"{self.shown}#{index}"

    def get(self, index: int) -> Any:
        with bad_values(self.location(index)):
            return plain_row(self.table, index)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_table": None}


class TextTable(ArrowTable):
    """A converted CSV or TSV file (`text_table.convert`)."""

    written = True  # numbers are text, as they are written

    def __init__(self, path: Path, shown: Path) -> None:
        super().__init__(path, shown)
        self.names = self.table.schema.metadata[b"names"].decode("utf-8", "surrogateescape").split("\x00")

    def location(self, index: int) -> str:
        return f"{self.shown}:{self.table['line'][index].as_py()}"

    def get(self, index: int) -> Any:
        _, fault, *values = self.table.slice(index, 1).to_pylist()[0].values()
        if fault:
            raise BadRecord(f"{self.location(index)}: {fault}")
        with bad_values(self.location(index)):
            return {name: value.decode("utf-8") for name, value in zip(self.names, values, strict=True)}


class ParquetRecords:
    """Records of a parquet file."""

    def __init__(self, path: Path, cache: DiskCache) -> None:
        self.path, self.file = path, ParquetFile(path, cache)

    def __len__(self) -> int:
        return len(self.file)

    def location(self, index: int) -> str:
        return f"{self.path}#{index}"

    def get(self, index: int) -> Any:
        with bad_values(self.location(index)):
            return self.file.row(index)

    @property
    def block_ends(self) -> np.ndarray:
        """Record numbers where blocks end: records of one block are cheap to read together."""
        return self.file.ends[1:]


def open_table(path: Path, shown: Path) -> Records:
    """An arrow, parquet, CSV or TSV file. Raises ConfigError for a file that cannot be read as a whole."""
    import pyarrow as pa

    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            return ParquetRecords(path, default_cache())
        if suffix in (".csv", ".tsv"):
            target = default_cache().get(
                _version("text table", path), lambda target: text_table.convert(path, target), ".arrow"
            )
            return TextTable(target, shown)
        return ArrowTable(path, shown)
    except ConfigError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(
            f"{shown}: cannot be read as {suffix}: {error} (is the file cut short, or of another type?)"
        ) from None


def _version(kind: str, path: Path) -> str:
    """The key of what is made of a file's present content."""
    stat = path.stat()
    return digest(kind, str(path.resolve()), repr((stat.st_size, stat.st_mtime_ns)))


OPENERS: dict[str, Callable[[Path, Path], Records]] = {  # of (the file, the one that messages name)
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".json": open_json,
    ".arrow": open_table,
    ".feather": open_table,
    ".parquet": open_table,
    ".csv": open_table,
    ".tsv": open_table,
}
SUFFIXES = (*OPENERS, *(f"{name}{packed}" for name in TEXT_SUFFIXES for packed in PACKED))
KINDS = f"{', '.join(OPENERS)}; texts also with {', '.join(PACKED)}"  # SUFFIXES, in short


def suffix_of(path: Path) -> tuple[str, str]:
    """(".jsonl", ".gz") of rows.jsonl.gz, (".csv", "") of rows.CSV."""
    suffix = path.suffix.lower()
    return (Path(path.stem).suffix.lower(), suffix) if suffix in PACKED else (suffix, "")


def open_records(path: Path) -> Records:
    """A file of records, read by its suffix. Raises ConfigError for a file that cannot be read as a whole."""
    suffix, packed = suffix_of(path)
    if suffix not in OPENERS or (packed and suffix not in TEXT_SUFFIXES):
        raise ConfigError(
            f"path: {path} has an unknown suffix. Known: {KINDS} (folders: source `folder`; "
            "tar: `webdataset`)."
        )
    try:
        if not path.stat().st_size:
            raise ConfigError(f"path: {path} is empty")
        plain = _unpacked(path, suffix, packed) if packed else path
        if suffix in TEXT_SUFFIXES and (encoding := _wide_encoding(plain)):
            raise ConfigError(
                f"path: {path} is {encoding} text; convert it to UTF-8 (iconv -f {encoding} -t UTF-8)"
            )
        return OPENERS[suffix](plain, path)
    except OSError as error:
        raise ConfigError(f"path: {path} cannot be read: {error.strerror or error}") from None


def _unpacked(path: Path, suffix: str, packed: str) -> Path:
    """The content of a compressed file, in the disk cache. Raises ConfigError where it is cut short, or grows
    beyond all measure."""
    import pyarrow as pa

    most = max(UNPACKED_ANYWAY, path.stat().st_size * MAX_EXPANSION)

    def write(target: Path) -> None:
        with pa.input_stream(str(path), compression=PACKED[packed]) as source, target.open("wb") as out:
            while block := source.read(BLOCK_BYTES):
                if out.tell() + len(block) > most:
                    raise ConfigError(
                        f"path: {path} unpacks to more than {most} bytes ({MAX_EXPANSION} times its size); "
                        "unpack it yourself"
                    )
                out.write(block)

    try:
        return default_cache().get(_version("unpacked", path), write, suffix)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            raise
        raise ConfigError(
            f"path: {path} cannot be unpacked as {packed}: {error} (is it cut short, or of another type?)"
        ) from None


def _wide_encoding(path: Path) -> str:
    """UTF-16 or UTF-32, by the byte order mark or the zero bytes of the first 4,096 bytes; "" for other
    files."""
    with path.open("rb") as file:
        head = file.read(4096)
    if head.startswith((b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")):
        return "UTF-32"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or head.count(0) * 4 > len(head):
        return "UTF-16"
    return ""
