"""The members of an uncompressed tar file by record: found in one pass over the headers, kept in the disk
cache, read by offset."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from vlrl_data.disk_cache import DiskCache
from vlrl_data.media.images import digest

BLOCK = 512
EMPTY = bytes(BLOCK)
MAX_NAME_BYTES = 1 << 20  # of a header that holds a long name
READ_BYTES = 1 << 13  # at a header: small members share a read, large ones are skipped


class TarFault(ValueError):
    """A tar file that cannot be read as a whole."""


class Member(NamedTuple):
    """A regular file of a tar: its name, and where its bytes are."""

    name: str
    start: int
    size: int


def split_name(name: str) -> tuple[str, str]:
    """(key of the record, suffix of the member) of a member's name: "a/b.seg.png" is ("a/b", "seg.png").
    Names without a dot have the suffix ""."""
    folder, _, last = name.rpartition("/")
    stem, _, suffix = last.partition(".")
    return f"{folder}/{stem}" if folder else stem, suffix.lower()


def _number(field: bytes) -> int:
    """A number of a header: octal digits, or base 256 where the first bit is set (GNU, above 8 GiB)."""
    return (
        int.from_bytes(field[1:], "big")
        if field[0] & 128
        else int(field.split(b"\0", 1)[0].strip() or b"0", 8)
    )


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _check_header(header: bytes, at: int) -> None:
    """Raises TarFault for a block that is no header: by its magic, else (tars before 1988) by its
    checksum."""
    if len(header) < BLOCK:
        raise TarFault(f"it is cut short in the header at byte {at}")
    if header[257:262] != b"ustar":
        try:
            fits = _number(header[148:156]) == sum(header) - sum(header[148:156]) + 8 * 32
        except ValueError:
            fits = False
        if not fits:
            raise TarFault(
                f"no header at byte {at}; compressed tars must be unpacked first"
                if not at
                else f"no header at byte {at}"
            )


def _pax(data: bytes) -> dict[bytes, bytes]:
    """The fields of an extended header: lines of `length key=value`."""
    found, at = {}, 0
    while at < len(data) and (space := data.find(b" ", at)) > 0:
        length = int(data[at:space])
        key, _, found_value = data[space + 1 : at + length - 1].partition(b"=")
        found[key] = found_value
        if length < 1:
            break
        at += length
    return found


def read_member(read: Callable[[int, int], bytes], at: int) -> tuple[Member | None, int]:
    """The member whose first header is at byte `at` (None: no regular file), and where the next one begins;
    -1 at the end of the archive.

    `read(at, n)` gives up to n bytes. Knows ustar, GNU (long names, sizes above 8 GiB) and pax headers.
    Raises TarFault.
    """
    name, size, first = "", -1, at
    while True:
        header = read(at, BLOCK)
        if header in (b"", EMPTY):
            return None, -1
        _check_header(header, at)
        try:
            kind, length, at = header[156:157], _number(header[124:136]), at + BLOCK
            after = at + (length + BLOCK - 1) // BLOCK * BLOCK
            if kind in b"xL" and length <= MAX_NAME_BYTES:
                data = read(at, length)
                fields = {b"path": data.rstrip(b"\0")} if kind == b"L" else _pax(data)
                name = fields[b"path"].decode("utf-8", "surrogateescape") if b"path" in fields else name
                size = int(fields.get(b"size", size))
                at = after
                continue
        except ValueError:
            raise TarFault(f"broken header at byte {first}") from None
        if kind == b"S" or kind == b"x":
            raise TarFault(
                f"the member at byte {first} is "
                f"{'sparse' if kind == b'S' else 'behind a header of unusual size'}; pack it plainly"
            )
        if kind in (b"g", b"K", b"N"):  # global fields, and names of link targets
            at = after
            continue
        size = length if size < 0 else size
        if kind not in (b"0", b"\0", b"7"):
            return None, after
        prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
        name = name or (f"{prefix}/" if prefix else "") + _text(header[:100])
        return Member(name, at, size), at + (size + BLOCK - 1) // BLOCK * BLOCK


def reader_of(file: BinaryIO) -> Callable[[int, int], bytes]:
    """`read` of `read_member` over an open file."""

    def read(at: int, size: int) -> bytes:
        file.seek(at)
        return file.read(size)

    return read


def members_of(path: Path) -> Iterator[tuple[int, Member]]:
    """(byte of its first header, member) of the regular files of a tar. Raises TarFault, OSError."""
    total = path.stat().st_size
    if not total:
        raise TarFault("it is empty")
    with path.open("rb", buffering=READ_BYTES) as file:
        read, at = reader_of(file), 0
        while at >= 0 and at < total:
            begin = at
            member, at = read_member(read, begin)
            if member is not None:
                if member.start + member.size > total:
                    raise TarFault(
                        f"it is cut short: member {member.name!r} has {total - member.start} of "
                        f"{member.size} bytes"
                    )
                yield begin, member
        if at > total:
            raise TarFault(f"it is cut short behind byte {begin}")


def scan(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(offsets of member headers ordered by record, number of the first member of each record and of all at
    the end). Raises TarFault, OSError."""
    offsets, keys = array("q"), array("q")
    for at, member in members_of(path):
        offsets.append(at)
        keys.append(hash(split_name(member.name)[0]))
    at_M, key_M = np.array(offsets, np.int64), np.array(keys, np.int64)
    starts = np.flatnonzero(np.diff(key_M, prepend=~key_M[:1])) if len(key_M) else np.zeros(0, np.int64)
    _, first, record_M = np.unique(key_M, return_index=True, return_inverse=True)
    if len(first) < len(
        starts
    ):  # the members of some record are not in a row: records by first appearance, members in their order
        order = np.argsort(first[record_M], kind="stable")
        at_M, key_M = at_M[order], key_M[order]
        starts = np.flatnonzero(np.diff(key_M, prepend=~key_M[:1]))
    return at_M, np.append(starts, len(at_M))


class TarIndex:
    """The records of a tar file by number: members whose names agree up to the first dot. Memory-mapped from
    the cache, 16 to 24 bytes a record.

    Raises TarFault or OSError for a file that cannot be read as a whole.
    """

    def __init__(self, path: Path, cache: DiskCache) -> None:
        self.path = path
        stat = path.stat()

        def write(target: Path) -> None:
            offsets, firsts = scan(path)
            with target.open("wb") as file:
                np.save(file, np.concatenate([[len(offsets)], offsets, firsts]).astype(np.int64))

        index = cache.get(
            digest("tar", str(path.resolve()), repr((stat.st_size, stat.st_mtime_ns))), write, ".npy"
        )
        self._index: Any = np.load(index, mmap_mode="r", allow_pickle=False)
        self._count = int(self._index[0])

    def __len__(self) -> int:
        return len(self._index) - self._count - 2

    def members(self, index: int) -> list[tuple[Member, bytes]]:
        """The members of a record with their bytes (fewer than `size` where the file was cut meanwhile).
        Raises TarFault, OSError."""
        first, last = (int(place) for place in self._index[1 + self._count + index : 3 + self._count + index])
        found = []
        handle = os.open(self.path, os.O_RDONLY)
        try:
            for at in self._index[1 + first : 1 + last]:
                member, _ = read_member(lambda start, size: os.pread(handle, size, start), int(at))
                if member is None:
                    raise TarFault(f"no member at byte {at}: the file has changed since it was indexed")
                found.append((member, os.pread(handle, member.size, member.start)))
        finally:
            os.close(handle)
        return found

    def key(self, index: int) -> str:
        """The key of a record: the common part of its members' names."""
        with self.path.open("rb", buffering=READ_BYTES) as file:
            member, _ = read_member(
                reader_of(file), int(self._index[1 + int(self._index[1 + self._count + index])])
            )
        return split_name(member.name)[0] if member else ""
