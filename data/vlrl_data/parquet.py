"""Parquet files by record number, at any size: opened by their footer, converted block by block into the disk
cache when they are read."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from vlrl_data.disk_cache import EXHAUSTED, DiskCache
from vlrl_data.media.images import digest
from vlrl_data.plain_values import plain_row

BLOCK_BYTES = (
    1 << 25
)  # small row groups are joined to blocks of at most this size (uncompressed, as the footer says)
BATCH_BYTES = 1 << 16  # of one read from a converted block
BATCH_ROWS = 4096  # at most, of one read
OPEN_BLOCKS = 256  # converted blocks that are open at a time: each is a file handle


class BlockError(ValueError):
    """Row groups that cannot be read."""


class ParquetFile:
    """Rows of a parquet file by number.

    Opening it reads the footer alone: memory is a few numbers per row group. Row groups are joined to blocks
    of up to `BLOCK_BYTES`; when a row of a block is read for the first time, the block is converted, in a
    stream, to an arrow file in the cache. Rows are then read from it in batches of about `BATCH_BYTES`, so
    that nothing is mapped or held. The cache is bounded: `prompt_sampler.blocks` reads block after block
    where a dataset is larger. Raises pyarrow's errors and OSError where the footer cannot be read.
    """

    def __init__(self, path: Path, cache: DiskCache) -> None:
        import pyarrow.parquet as pq

        self.path, self.cache = path, cache
        metadata = pq.read_metadata(path)
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        self.total_bytes = sum(group.total_byte_size for group in groups)
        self.blocks: list[range] = []  # of row groups
        ends, rows, used = [0], 0, 0
        for number, group in enumerate(groups):
            rows, used = rows + group.num_rows, used + group.total_byte_size
            if used > BLOCK_BYTES or not self.blocks:
                self.blocks.append(range(number, number))
                ends.append(0)
                used = group.total_byte_size
            self.blocks[-1], ends[-1] = range(self.blocks[-1].start, number + 1), rows
        self.ends = np.array(ends, np.int64)  # rows before each block, and in all
        row_bytes = self.total_bytes // max(1, rows)
        self.batch_rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, row_bytes)))
        stat = path.stat()
        self._key = (str(path.resolve()), repr((stat.st_size, stat.st_mtime_ns)))
        self._broken: dict[int, str] = {}

    def __len__(self) -> int:
        return int(self.ends[-1])

    def row(self, index: int) -> dict[str, Any]:
        """The row as plain Python values. Raises BlockError, and what pyarrow raises for values that Python
        cannot hold."""
        block = int(np.searchsorted(self.ends, index, side="right")) - 1
        if block in self._broken:
            raise BlockError(self._broken[block])
        try:
            batch, offset = self._batch_with(block, index - int(self.ends[block]))
        except (OSError, ValueError, StopIteration) as error:  # pyarrow's errors are ValueErrors or OSErrors
            if isinstance(error, OSError) and error.errno in EXHAUSTED:
                raise
            groups = self.blocks[block]
            which = (
                f"row group {groups[0]}" if len(groups) == 1 else f"row groups {groups[0]} to {groups[-1]}"
            )
            self._broken[block] = f"{which} cannot be read: {error}"
            raise BlockError(self._broken[block]) from None
        return plain_row(batch, offset)

    def _batch_with(self, block: int, place: int) -> tuple[Any, int]:
        """The record batch that holds a row of a block, and the row's place in it."""
        key = digest("block", *self._key, str(block))
        if (
            place == 0 and not self.cache.path(key, ".arrow").exists()
        ):  # the first record tells the record family: not worth a conversion
            return next(
                self._stream(block, 1)[1]
            ), 0  # StopIteration: the footer tells of rows that are not there
        number, offset = divmod(place, self.batch_rows)
        reader, lock = open_arrow(
            str(self.cache.get(key, lambda target: self._convert(block, target), ".arrow"))
        )
        with lock:
            return reader.get_batch(number), offset

    def _convert(self, block: int, target: Path) -> None:
        schema, batches = self._stream(block, self.batch_rows)
        write_arrow(target, batches, schema)

    def _stream(self, block: int, rows: int) -> tuple[Any, Iterator[Any]]:
        """The schema of a block, and its rows in batches of exactly `rows` (the last has the rest).
        Dictionary columns become plain ones."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = pq.ParquetFile(self.path, buffer_size=1 << 20, page_checksum_verification=True)
        schema = pa.schema(
            [
                f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f
                for f in file.schema_arrow
            ]
        )
        batches = (
            batch.cast(schema) for batch in file.iter_batches(rows, row_groups=list(self.blocks[block]))
        )
        return schema, even_batches(batches, rows, int(self.ends[block + 1] - self.ends[block]))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_broken": {}}


@lru_cache(maxsize=OPEN_BLOCKS)
def open_arrow(path: str) -> tuple[Any, threading.Lock]:
    """The reader of an arrow file that is not mapped, and a lock for it."""
    import pyarrow as pa

    return pa.ipc.open_file(pa.OSFile(path)), threading.Lock()


def even_batches(batches: Iterable[Any], rows: int, total: int) -> Iterator[Any]:
    """The batches cut and joined so that each but the last has `rows` rows. Raises ValueError if they have
    not `total` rows together."""
    import pyarrow as pa

    waiting: list[Any] = []
    held = seen = 0
    for batch in batches:
        waiting.append(batch)
        held, seen = held + batch.num_rows, seen + batch.num_rows
        while held >= rows:
            joined = (
                waiting[0]
                if len(waiting) == 1
                else pa.Table.from_batches(waiting).combine_chunks().to_batches()[0]
            )
            yield joined.slice(0, rows)
            held -= rows
            waiting = [joined.slice(rows)] if held else []
    if held:
        yield pa.Table.from_batches(waiting).combine_chunks().to_batches()[0]
    if seen != total:
        raise ValueError(f"it has {seen} of {total} rows (is the file cut short?)")


def write_arrow(target: Path, batches: Iterable[Any], schema: Any) -> None:
    """Record batches to an arrow file, one at a time."""
    import pyarrow as pa

    with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write(batch)
