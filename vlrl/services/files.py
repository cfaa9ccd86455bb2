"""Files of a run: JSON lines that survive a crash, and files that are written whole or not at all.

A process that dies in mid-write, or a machine that loses power, leaves a torn line: half a line, zeros, or
two lines in one. Every reader of a run's JSONL files skips such lines and says so once per file; every writer
ends a torn last line before it appends.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger("vlrl")

TRAJECTORIES = "trajectories.jsonl"  # of the episodes that `environment.record` keeps

_reported: set[tuple[str, tuple[int, ...]]] = set()


def read_jsonl(path: str | Path, keys: Mapping[str, type] | None = None) -> list[dict[str, Any]]:
    """The objects of a JSONL file; [] for a missing one. Torn lines are skipped, with one warning that names
    them.

    `keys`: what every object has, with its type; a line without it is torn too (a flipped bit can leave valid
    JSON).
    """
    return [row for row, _ in parse_jsonl(Path(path), keys)]


def thinned_jsonl(
    path: str | Path, keys: Mapping[str, type] | None, limit: int
) -> tuple[list[dict[str, Any]], int]:
    """(objects, number of lines) of a JSONL file. Of one with at least 2 `limit` lines a part is parsed, for
    curves: about 2 `limit` at most.

    Of every stretch of lines / `limit` lines one is taken, at a place that varies, so that nothing which is
    recorded every so many lines is missed or met each time; further the first, the last, and lines which have
    other keys or another phase than the one before (again `limit` at most).
    """
    path = Path(path)
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    count = sum(1 for line in lines if line)
    every = count // limit
    if every < 2:
        rows = [row for row, _ in parse_jsonl(path, keys)]
        return rows, len(rows)
    chosen = {
        0,
        len(lines) - 1,
        len(lines) - 2,
        len(lines) - 3,
        *(i * every + (i * 2654435761 >> 8) % every for i in range(limit)),
    }
    shapes = [
        (line.count(b'":'), line[(at := line.find(b'"phase"')) : line.find(b",", at)] if line else b"")
        for line in lines
    ]
    changed = [i for i in range(1, len(lines)) if shapes[i] != shapes[i - 1]]
    chosen |= set(changed[:: len(changed) // limit + 1])
    return [row for row, _ in parse_jsonl(path, keys, chosen)], count


def parse_jsonl(
    path: Path, keys: Mapping[str, type] | None = None, chosen: Container[int] | None = None
) -> list[tuple[dict[str, Any], str]]:
    """(object, its line) of a JSONL file, as `read_jsonl`; of the lines with a number in `chosen` (from 0)
    only, if that is given."""
    found, torn = [], []
    for number, raw in enumerate(path.read_bytes().split(b"\n") if path.is_file() else (), 1):
        if (chosen is not None and number - 1 not in chosen) or not raw.strip():
            continue
        try:
            line = raw.decode("utf-8")
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and all(
            isinstance(row.get(key), kind) for key, kind in (keys or {}).items()
        ):
            found.append((row, line))
        else:
            torn.append(number)
    if torn and (key := (str(path), tuple(torn))) not in _reported:
        _reported.add(key)
        shown = ", ".join(map(str, torn[:5])) + (" ..." if len(torn) > 5 else "")
        log.warning(
            "%s: %d torn line%s (%s), left by a process that died while writing, skipped",
            path,
            len(torn),
            "s" * (len(torn) > 1),
            shown,
        )
    return found


def jsonl_line(row: Mapping[str, Any]) -> bytes:
    """One line with its newline. What JSON does not know is written as a number or text; a lone surrogate as
    its escape."""
    text = json.dumps(row, ensure_ascii=False, default=_plain)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _plain(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def append_jsonl(path: Path, row: Mapping[str, Any]) -> None:
    """Append one line in one write; a torn last line is ended first. A write that fails half-way (a full
    disk) is undone."""
    with path.open("ab+", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        line = jsonl_line(row)
        if before:
            file.seek(before - 1)
            line = line if file.read(1) == b"\n" else b"\n" + line
        try:
            written = file.write(line)
            if written != len(line):
                file.write(line[written:])  # names the reason: the disk is full, or the limit is reached
        except OSError as error:
            file.truncate(before)
            raise OSError(error.errno, error.strerror, str(path)) from None


def write_whole(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Write a file whole or not at all: to a scratch file beside it, flushed to the disk, then renamed. No
    scratch file stays after an error."""
    parts = (
        [content.encode("utf-8", "backslashreplace")]
        if isinstance(content, str)
        else [content]
        if isinstance(content, bytes)
        else content
    )
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with scratch.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        scratch.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def flush_folder(folder: Path) -> None:
    """Flush a folder's entries (renames, new files) to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
