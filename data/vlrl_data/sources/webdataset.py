"""WebDataset tar files as a source."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl.registry import ConfigError, register
from vlrl_data.media.images import IMAGE_SUFFIXES
from vlrl_data.media.video import VIDEO_SUFFIXES
from vlrl_data.records import BadRecord, Records, json_fault
from vlrl_data.sources.files import RecordSource, expand_paths


@register("webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(RecordSource):
    """Tar files of the WebDataset layout: members with one stem are one record; json members give columns, image and video members media.

    `txt` is the question and `cls` the answer where the json has none. Read in place through an index of member offsets (uncompressed tars only).
    """

    path: tuple[str, ...] | str

    def label(self) -> str:
        return self.path if isinstance(self.path, str) else ", ".join(self.path)

    def open(self) -> Iterator[tuple[Records, str, str]]:
        for file in expand_paths(self.path, (".tar",)):
            yield TarRecords(file), str(file.parent), file.stem


class TarRecords:
    """Records of one tar file, by number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found: dict[str, dict[str, tuple[int, int]]] = {}
        try:
            with tarfile.open(path, "r:") as tar:
                for member in tar:
                    if member.isfile():
                        folder, _, name = member.name.rpartition("/")
                        stem, _, suffix = name.partition(".")
                        found.setdefault(f"{folder}/{stem}" if folder else stem, {})[suffix.lower()] = (member.offset_data, member.size)
        except (tarfile.TarError, OSError) as error:
            raise ConfigError(f"{path}: not an uncompressed tar file, or one that is cut short: {error}") from None
        self.members = list(found.items())

    def __len__(self) -> int:
        return len(self.members)

    def location(self, index: int) -> str:
        return f"{self.path}[{self.members[index][0]}]"

    def get(self, index: int) -> Any:
        key, parts = self.members[index]
        content: dict[str, bytes] = {}
        with self.path.open("rb") as file:
            for suffix, (start, size) in parts.items():
                file.seek(start)
                content[suffix] = file.read(size)
                if len(content[suffix]) < size:
                    raise BadRecord(f"{self.location(index)}: the file is cut short: {len(content[suffix])} of {size} bytes of .{suffix}")
        return self._record(key, content, self.location(index))

    @staticmethod
    def _record(key: str, content: dict[str, bytes], location: str) -> dict[str, Any]:
        record: dict[str, Any] = {"id": key}
        columns = content.pop("json", b"{}")
        try:
            record |= json.loads(columns)
            record |= {name: content.pop(suffix).decode().strip() for suffix, name in (("txt", "question"), ("cls", "answer")) if suffix in content}
        except (ValueError, TypeError, RecursionError) as error:
            raise BadRecord(f"{location}: broken member: {json_fault(error, columns)}") from None
        for kind, suffixes in (("image", IMAGE_SUFFIXES), ("video", VIDEO_SUFFIXES)):
            media = [content[suffix] for suffix in sorted(content) if f".{suffix.rpartition('.')[2]}" in suffixes]
            if media:
                record = {name: value for name, value in record.items() if name not in (kind, kind + "s")} | {kind + "s": media}
        return record
