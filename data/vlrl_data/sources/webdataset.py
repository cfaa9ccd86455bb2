"""WebDataset tar files as a source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl.plugins.registry import ConfigError, register
from vlrl_data.disk_cache import default_cache
from vlrl_data.media.images import IMAGE_SUFFIXES
from vlrl_data.media.video import VIDEO_SUFFIXES
from vlrl_data.records import BadRecord, Records, json_fault
from vlrl_data.sources.files import RecordSource, expand_paths
from vlrl_data.tar_index import TarFault, TarIndex, split_name

PICKLED = frozenset({"pkl", "pickle", "pyd", "pt", "pth", "dill", "joblib"})  # reading one can run any code


@register("webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(RecordSource):
    """Tar files of the WebDataset layout: members with one stem are one record; json members give columns,
    image and video members media.

    `txt` is the question and `cls` the answer where the json has none. Read in place (uncompressed tars
    only), by an index of member offsets that is made once and kept in the disk cache. A record with a pickled
    member (.pyd, .pkl, .pt ...) is quarantined: nothing is unpickled.
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
        try:
            self.index = TarIndex(path, default_cache())
        except (TarFault, OSError) as error:
            raise ConfigError(
                f"{path}: not an uncompressed tar file, or one that is cut short: {error}"
            ) from None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def block_ends(self) -> list[int]:
        """The whole file is one block: its records are cheap to read together."""
        return [len(self)]

    def location(self, index: int) -> str:
        try:
            return f"{self.path}[{self.index.key(index)}]"
        except (TarFault, OSError):
            return f"{self.path}[{index}]"

    def get(self, index: int) -> Any:
        try:
            members = self.index.members(index)
        except (TarFault, FileNotFoundError) as error:
            raise BadRecord(f"{self.location(index)}: {error}") from None
        content: dict[str, bytes] = {}
        for member, data in members:
            key, suffix = split_name(member.name)
            if suffix.rpartition(".")[2] in PICKLED:
                raise BadRecord(
                    f"{self.location(index)}: member {member.name!r} is pickled, and reading it could run "
                    "any code; store it as json, txt or media"
                )
            if len(data) < member.size:
                raise BadRecord(
                    f"{self.location(index)}: the file is cut short: {len(data)} of {member.size} bytes of "
                    f".{suffix}"
                )
            content[suffix] = data
        return self._record(key, content, self.location(index))

    @staticmethod
    def _record(key: str, content: dict[str, bytes], location: str) -> dict[str, Any]:
        record: dict[str, Any] = {"id": key}
        columns = content.pop("json", b"{}")
        try:
            record |= json.loads(columns)
            record |= {
                name: content.pop(suffix).decode().strip()
                for suffix, name in (("txt", "question"), ("cls", "answer"))
                if suffix in content
            }
        except (ValueError, TypeError, RecursionError) as error:
            raise BadRecord(f"{location}: broken member: {json_fault(error, columns)}") from None
        for kind, suffixes in (("image", IMAGE_SUFFIXES), ("video", VIDEO_SUFFIXES)):
            media = [
                content[suffix] for suffix in sorted(content) if f".{suffix.rpartition('.')[2]}" in suffixes
            ]
            if media:
                record = {name: value for name, value in record.items() if name not in (kind, kind + "s")} | {
                    kind + "s": media
                }
        return record
