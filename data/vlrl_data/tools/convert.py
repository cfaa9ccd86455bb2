"""Any record family to ours, and back: rows as JSON lines."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from vlrl.types import Media, Row
from vlrl_data.anymedia import plain
from vlrl_data.media import Picture
from vlrl_data.video import Video


def record_of(row: Row, folder: Path | None = None) -> dict[str, Any]:
    """A row as plain values (JSON). Media files are named relative to `folder` where they lie under it; other media are held as bytes."""
    values: dict[str, Any] = {}
    for item in fields(Row):
        value = getattr(row, item.name)
        if value not in ("", (), {}, None) and not (item.name == "task" and value == "default"):
            values[item.name] = value
    for name in ("images", "videos"):
        if name in values:
            values[name] = [_near(plain(medium), folder) for medium in values[name]]
    return values | {name: list(values[name]) for name in ("choices", "messages", "rewards") if name in values} | _bare(values.get("meta"))


def _bare(meta: Any) -> dict[str, Any]:
    return {"meta": {name: _media_too(value) for name, value in meta.items()}} if meta else {}


def _media_too(value: Any) -> Any:
    if isinstance(value, Media):
        return plain(value)
    return [_media_too(item) for item in value] if isinstance(value, (list, tuple)) else value


def _near(value: Any, folder: Path | None) -> Any:
    if folder is None:
        return value
    if isinstance(value, str) and "://" not in value:
        return _relative(value, folder)
    if isinstance(value, Mapping):
        near = {"path": _relative(value["path"], folder)} if "path" in value else {}
        near |= {"frames": [_relative(file, folder) for file in value["frames"]]} if "frames" in value else {}
        return {**value, **near}
    return value


def _relative(path: str, folder: Path) -> str:
    full = Path(path).resolve()
    return str(full.relative_to(folder.resolve())) if full.is_relative_to(folder.resolve()) else str(full)


def write(rows: Iterable[Row], target: Path) -> int:
    """Rows to a JSONL file (whole or not at all); returns how many."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".converting-")
    count = 0
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            for row in rows:
                out.write(json.dumps(record_of(row, target.parent), ensure_ascii=False) + "\n")
                count += 1
        os.chmod(name, 0o644)
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)
    return count


def pack(rows: Iterable[Row], target: Path) -> int:
    """As `write`, with every picture and video inside the file: it can be moved alone."""

    def inside(medium: Media) -> Media:
        if isinstance(medium, Picture) and isinstance(medium.source, str):
            return Picture(Path(medium.source).read_bytes(), medium.limits)
        if isinstance(medium, Video) and isinstance(medium.source, str):
            return Video(Path(medium.source).read_bytes(), medium.frames, medium.span)
        return medium

    def all_inside(row: Row) -> Row:
        values = {item.name: getattr(row, item.name) for item in fields(Row)}
        return Row(**values | {"images": tuple(map(inside, row.images)), "videos": tuple(map(inside, row.videos))})

    return write(map(all_inside, rows), target)
