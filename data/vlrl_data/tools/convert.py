"""Rows as JSON lines in our own format."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from vlrl.types import Media, Row
from vlrl_data.media.audio import StoredSound
from vlrl_data.media.images import StoredImage
from vlrl_data.media.parse import to_json
from vlrl_data.media.video import StoredVideo


def record_of(row: Row, folder: Path | None = None) -> dict[str, Any]:
    """A row as plain values (JSON). Media files under `folder` are named relative to it; media that are no
    files are written as bytes.

    Fields that do not belong to the row's content (`origin`, its place in the file it was read from) are left
    out.
    """
    values: dict[str, Any] = {}
    for item in (item for item in fields(Row) if item.compare):
        value = getattr(row, item.name)
        if value not in ("", (), {}, None) and not (item.name == "task" and value == "default"):
            values[item.name] = value
    for name in ("images", "videos", "audios"):
        if name in values:
            values[name] = [_relative_media(to_json(medium), folder) for medium in values[name]]
    return (
        values
        | {name: list(values[name]) for name in ("choices", "messages", "rewards") if name in values}
        | _plain_meta(values.get("meta"))
    )


def _plain_meta(meta: Any) -> dict[str, Any]:
    return {"meta": {name: _media_to_json(value) for name, value in meta.items()}} if meta else {}


def _media_to_json(value: Any) -> Any:
    """A value of `meta` with its media as JSON."""
    if isinstance(value, Media):
        return to_json(value)
    return [_media_to_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def _relative_media(value: Any, folder: Path | None) -> Any:
    if folder is None:
        return value
    if isinstance(value, str) and "://" not in value:
        return _relative(value, folder)
    if isinstance(value, Mapping):
        path = {"path": _relative(value["path"], folder)} if "path" in value else {}
        frames = (
            {"frames": [_relative(file, folder) for file in value["frames"]]} if "frames" in value else {}
        )
        return {**value, **path, **frames}
    return value


def _relative(path: str, folder: Path) -> str:
    full = Path(path).resolve()
    return str(full.relative_to(folder.resolve())) if full.is_relative_to(folder.resolve()) else str(full)


def write(rows: Iterable[Row], target: Path) -> int:
    """Write rows to a JSONL file (whole or not at all); returns their number."""
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
    """As `write`, with the bytes of every image and video file inside the JSONL file, so that it can be moved
    alone."""

    def in_bytes(medium: Media) -> Media:
        if isinstance(medium, StoredImage) and isinstance(medium.source, str):
            return StoredImage(Path(medium.source).read_bytes(), medium.limits)
        if isinstance(medium, StoredVideo) and isinstance(medium.source, str):
            return StoredVideo(Path(medium.source).read_bytes(), medium.frames, medium.span)
        if isinstance(medium, StoredSound) and isinstance(medium.source, str):
            return StoredSound(Path(medium.source).read_bytes())
        return medium

    packed = (
        replace(
            row,
            images=tuple(map(in_bytes, row.images)),
            videos=tuple(map(in_bytes, row.videos)),
            audios=tuple(map(in_bytes, row.audios)),
        )
        for row in rows
    )
    return write(packed, target)
