"""Folders of images or videos as a source."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl.plugins.registry import ConfigError, register
from vlrl_data.media.images import IMAGE_SUFFIXES
from vlrl_data.media.video import VIDEO_SUFFIXES
from vlrl_data.records import BadRecord, RecordList, Records, open_records
from vlrl_data.sources.files import RecordSource


@register("folder")
@dataclass(frozen=True, kw_only=True)
class Folder(RecordSource):
    """A folder of images or videos. The answer is the name of the subfolder each file is in, unless the
    folder has a metadata file.

    metadata.jsonl or metadata.csv (with `file_name`, as in Hugging Face's imagefolder) gives the other
    columns.
    """

    path: str
    question: str = "What is in the picture?"

    def label(self) -> str:
        return self.path

    def open(self) -> Iterator[tuple[Records, str, str]]:
        root = Path(self.path).expanduser()
        try:
            if not root.is_dir():
                raise ConfigError(f"path: no folder {self.path!r}")
            metadata = next(
                (root / name for name in ("metadata.jsonl", "metadata.csv") if (root / name).is_file()), None
            )
            records: Records = MetadataRecords(open_records(metadata)) if metadata else labelled_files(root)
        except OSError as error:
            raise ConfigError(
                f"path: {error.filename or self.path} cannot be read: {error.strerror or error}"
            ) from None
        if not len(records):
            raise ConfigError(
                f"path: {self.path!r} has no images or videos in subfolders, and no metadata.jsonl or "
                "metadata.csv"
            )
        yield records, str(root), root.name


class MetadataRecords:
    """Records of a metadata file, whose `file_name` becomes an `image` or `video` column."""

    def __init__(self, inner: Records) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def location(self, index: int) -> str:
        return self.inner.location(index)

    def get(self, index: int) -> Any:
        found = self.inner.get(index)
        if not isinstance(found, dict):
            raise BadRecord(
                f"{self.location(index)}: a record must be a mapping of fields, got {type(found).__name__}"
            )
        record = dict(found)
        if "file_name" in record:
            name = str(record.pop("file_name"))
            record["video" if Path(name).suffix.lower() in VIDEO_SUFFIXES else "image"] = name
        return record


def labelled_files(root: Path) -> Records:
    """A record per media file in a subfolder; the answer is the subfolder's name."""
    records = []
    for file in sorted(_files_below(root)):
        kind = (
            "image"
            if file.suffix.lower() in IMAGE_SUFFIXES
            else "video"
            if file.suffix.lower() in VIDEO_SUFFIXES
            else ""
        )
        if kind:
            name = str(file.relative_to(root))
            records.append(
                {
                    "id": name,
                    kind: name,
                    "question": "",
                    "answer": file.relative_to(root).parts[0],
                    "task": "classification",
                }
            )
    return LabelledFiles(root, records)


def _files_below(root: Path) -> list[Path]:
    """The files in subfolders. Raises OSError for a folder that cannot be read (`Path.glob` skips it)."""

    def refuse(error: OSError) -> None:
        raise error

    subfolders = [folder for folder in root.iterdir() if folder.is_dir()]
    return [
        Path(parent) / name
        for folder in subfolders
        for parent, _, names in os.walk(folder, onerror=refuse)
        for name in names
    ]


class LabelledFiles(RecordList):
    """Records of a class folder, each located by its file."""

    def location(self, index: int) -> str:
        return str(self.path / self.items[index]["id"])
