"""Sources that are more than files of records: picture folders, WebDataset tars, Hugging Face datasets."""

from __future__ import annotations

import csv
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlrl.registry import ConfigError, register
from vlrl_data.cache import default_cache
from vlrl_data.media import IMAGE_SUFFIXES, digest
from vlrl_data.records import BadRecord, Lines, Listed, Records, Table, write_arrow
from vlrl_data.sources import Recorded, expand

VIDEO_SUFFIXES = frozenset({".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v"})


@register("folder")
@dataclass(frozen=True, kw_only=True)
class Folder(Recorded):
    """A folder of pictures or videos. The answer is the name of the subfolder each is in, unless the folder has a metadata file.

    metadata.jsonl or metadata.csv (with `file_name`, as Hugging Face's imagefolder has it) gives the other columns.
    """

    path: str
    question: str = "What is in the picture?"

    def label(self) -> str:
        return self.path

    def opened(self) -> Iterator[tuple[Records, str, str]]:
        root = Path(self.path).expanduser()
        if not root.is_dir():
            raise ConfigError(f"path: no folder {self.path!r}")
        items = _described(root) if _metadata(root) else _labelled(root)
        if not len(items):
            raise ConfigError(f"path: {self.path!r} has no pictures or videos in subfolders, and no metadata.jsonl or metadata.csv")
        yield items, str(root), root.name


def _metadata(root: Path) -> Path | None:
    return next((root / name for name in ("metadata.jsonl", "metadata.csv") if (root / name).is_file()), None)


class Described:
    """Records of a metadata file, its `file_name` read as a medium."""

    def __init__(self, inner: Records) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def place(self, index: int) -> str:
        return self.inner.place(index)

    def get(self, index: int) -> Any:
        record = dict(self.inner.get(index))
        if "file_name" in record:
            name = record.pop("file_name")
            record["video" if Path(name).suffix.lower() in VIDEO_SUFFIXES else "image"] = name
        return record


def _described(root: Path) -> Records:
    file = _metadata(root)
    assert file is not None
    if file.suffix == ".jsonl":
        return Described(Lines(file))
    with file.open(newline="", encoding="utf-8") as handle:
        return Described(Listed(file, list(csv.DictReader(handle))))


def _labelled(root: Path) -> Records:
    items = []
    for file in sorted(root.glob("*/**/*")):
        kind = "image" if file.suffix.lower() in IMAGE_SUFFIXES else "video" if file.suffix.lower() in VIDEO_SUFFIXES else ""
        if kind:
            name = str(file.relative_to(root))
            items.append({"id": name, kind: name, "question": "", "answer": file.relative_to(root).parts[0], "task": "classification"})
    return Labelled(root, items)


class Labelled(Listed):
    """Records of a class folder; each is named by its file."""

    def place(self, index: int) -> str:
        return str(self.path / self.items[index]["id"])


@register("webdataset")
@dataclass(frozen=True, kw_only=True)
class WebDataset(Recorded):
    """Tar files of the WebDataset layout: members with one stem are one record; json members give columns, pictures and videos give media.

    `txt` is the question and `cls` the answer where the json has none. Read in place through an index of member offsets (uncompressed tars only).
    """

    path: tuple[str, ...] | str

    def label(self) -> str:
        return self.path if isinstance(self.path, str) else ", ".join(self.path)

    def opened(self) -> Iterator[tuple[Records, str, str]]:
        for file in expand(self.path, (".tar",)):
            yield Tar(file), str(file.parent), file.stem


class Tar:
    """Records of one tar file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found: dict[str, dict[str, tuple[int, int]]] = {}
        try:
            with tarfile.open(path, "r:") as tar:
                for member in tar:
                    if member.isfile():
                        folder, _, name = member.name.rpartition("/")
                        stem, _, ending = name.partition(".")
                        found.setdefault(f"{folder}/{stem}" if folder else stem, {})[ending.lower()] = (member.offset_data, member.size)
        except tarfile.TarError as error:
            raise ConfigError(f"{path}: not an uncompressed tar file: {error}") from None
        self.members = list(found.items())

    def __len__(self) -> int:
        return len(self.members)

    def place(self, index: int) -> str:
        return f"{self.path}[{self.members[index][0]}]"

    def get(self, index: int) -> Any:
        key, parts = self.members[index]
        content: dict[str, bytes] = {}
        with self.path.open("rb") as file:
            for ending, (start, size) in parts.items():
                file.seek(start)
                content[ending] = file.read(size)
        record: dict[str, Any] = {"id": key}
        try:
            record |= json.loads(content.pop("json", b"{}"))
            record |= {name: content.pop(ending).decode().strip() for ending, name in (("txt", "question"), ("cls", "answer")) if ending in content}
        except (ValueError, TypeError) as error:
            raise BadRecord(f"{self.place(index)}: broken member: {error}") from None
        for kind, endings in (("image", IMAGE_SUFFIXES), ("video", VIDEO_SUFFIXES)):
            media = [content[ending] for ending in sorted(content) if f".{ending.rpartition('.')[2]}" in endings]
            if media:
                record = {name: value for name, value in record.items() if name not in (kind, kind + "s")} | {kind + "s": media}
        return record


@register("hub")
@dataclass(frozen=True, kw_only=True)
class Hub(Recorded):
    """A Hugging Face dataset: an id on the hub, or a folder written by `save_to_disk`.

    `split` may be a slice ("train[:1000]"). `stream` takes the first `limit` rows without downloading the rest, and keeps them in the cache.
    """

    path: str
    config: str = ""
    split: str = "train"
    revision: str = ""
    stream: bool = False
    token: Literal["env", "none"] = "env"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stream and not self.limit:
            raise ConfigError("limit: streaming takes the first rows of a dataset; say how many")

    def label(self) -> str:
        return f"{self.path}@{self.split}"

    def opened(self) -> Iterator[tuple[Records, str, str]]:
        stem = self.path.rstrip("/").rpartition("/")[2]
        if self.stream:
            yield self._streamed(), ".", stem
        else:
            yield Arrow(raw_media(self._loaded()), self.label()), str(Path(self.path).parent), stem

    def _loaded(self) -> Any:
        from datasets import DatasetDict, load_dataset, load_from_disk

        if Path(self.path).is_dir() and any((Path(self.path) / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
            found = load_from_disk(self.path)
            if isinstance(found, DatasetDict):
                if self.split not in found:
                    raise ConfigError(f"split: {self.path!r} has no split {self.split!r}. Known: {', '.join(found)}.")
                return found[self.split]
            return found
        return load_dataset(
            self.path, self.config or None, split=self.split, revision=self.revision or None, token=None if self.token == "env" else False
        )

    def _streamed(self) -> Records:
        from datasets import load_dataset

        key = digest("stream", self.path, self.config, self.split, self.revision, str(self.limit))

        def write(target: Path) -> None:
            import pyarrow as pa

            token = None if self.token == "env" else False
            rows = load_dataset(self.path, self.config or None, split=self.split, revision=self.revision or None, streaming=True, token=token)
            table = pa.Table.from_pylist(list(raw_media(rows).take(self.limit)))
            write_arrow(target, table.to_batches(), table.schema)

        return Table(default_cache().get(key, write, ".arrow"), Path(self.label()))


def raw_media(dataset: Any) -> Any:
    """The dataset with its pictures and videos left undecoded: a row that is only looked at costs no decoding."""
    for name, feature in (dataset.features or {}).items():
        inner = getattr(feature, "feature", feature)
        if type(inner).__name__ in ("Image", "Video"):
            raw = type(inner)(decode=False)
            dataset = dataset.cast_column(name, raw if inner is feature else type(feature)(raw))
    return dataset


class Arrow:
    """Rows of a `datasets.Dataset`."""

    def __init__(self, dataset: Any, label: str) -> None:
        self.dataset, self.label = dataset, label

    def __len__(self) -> int:
        return len(self.dataset)

    def place(self, index: int) -> str:
        return f"{self.label}#{index}"

    def get(self, index: int) -> Mapping[str, Any] | Sequence[Any]:
        return self.dataset[index]
