"""Hugging Face datasets as a source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlrl.plugins.registry import ConfigError, register
from vlrl.services.hub import hub_reachable, in_hub_cache
from vlrl_data.disk_cache import default_cache
from vlrl_data.media.images import digest
from vlrl_data.parquet import write_arrow
from vlrl_data.plain_values import plain_row
from vlrl_data.records import ArrowTable, Records, bad_values
from vlrl_data.sources.files import RecordSource


@register("hub")
@dataclass(frozen=True, kw_only=True)
class Hub(RecordSource):
    """A Hugging Face dataset: an id on the hub, or a folder written by `save_to_disk`.

    `split` may be a slice ("train[:1000]"). `stream` takes the first `limit` rows without downloading the
    rest, and keeps them in the cache.
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
            raise ConfigError("limit: `stream` takes the first rows of a dataset; say how many with `limit`")

    def label(self) -> str:
        return f"{self.path}@{self.split}"

    def look(self) -> str:
        if Path(self.path).is_dir():
            return super().look()
        return f"{self.label()}: fetched from the hub unless its cache has it (size unknown)"

    def open(self) -> Iterator[tuple[Records, str, str]]:
        stem = self.path.rstrip("/").rpartition("/")[2]
        if self.stream:
            yield self._streamed(), ".", stem
        else:
            yield (
                DatasetRecords(undecoded_media(self._loaded()), self.label()),
                str(Path(self.path).parent),
                stem,
            )

    def _loaded(self) -> Any:
        from datasets import DatasetDict, load_from_disk

        if Path(self.path).is_dir() and any(
            (Path(self.path) / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")
        ):
            found = load_from_disk(self.path)
            if isinstance(found, DatasetDict):
                if self.split not in found:
                    raise ConfigError(
                        f"split: {self.path!r} has no split {self.split!r}. Known: "
                        f"{', '.join(map(str, found))}."
                    )
                return found[self.split]
            return found
        return self._of_the_hub(streaming=False)

    def _of_the_hub(self, streaming: bool) -> Any:
        from datasets import load_dataset

        stored = Path(self.path).exists() or in_hub_cache(self.path)
        if not stored and not hub_reachable():  # the client libraries try for minutes
            raise ConfigError(
                f"path: {self.path!r} is not in the cache, and the hub cannot be reached from here; download "
                "it where it can be, and give its folder or files"
            )
        token = None if self.token == "env" else False
        try:
            return load_dataset(
                self.path,
                self.config or None,
                split=self.split,
                revision=self.revision or None,
                streaming=streaming,
                token=token,
            )
        except (
            OSError,
            ValueError,
        ) as error:  # no network, no such dataset, config, split or revision, no permission
            said = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"path: {self.path!r} cannot be read from the hub ({said}); check path, config, split and "
                "the network"
            ) from None

    def _streamed(self) -> Records:
        key = digest("stream", self.path, self.config, self.split, self.revision, str(self.limit))

        def write(target: Path) -> None:
            import pyarrow as pa

            rows = undecoded_media(self._of_the_hub(streaming=True)).with_format("arrow").take(self.limit)
            table = pa.concat_tables(list(rows), promote_options="default")
            write_arrow(target, table.to_batches(), table.schema)

        return ArrowTable(default_cache().get(key, write, ".arrow"), Path(self.label()))


def undecoded_media(dataset: Any) -> Any:
    """The dataset with its image, video and audio columns left as bytes and paths, so that checking a row
    decodes nothing."""
    for name, feature in (dataset.features or {}).items():
        inner = getattr(feature, "feature", feature)
        if type(inner).__name__ in ("Image", "Video", "Audio"):
            raw = type(inner)(decode=False)
            dataset = dataset.cast_column(name, raw if inner is feature else type(feature)(raw))
    return dataset


class DatasetRecords:
    """Records of a `datasets.Dataset`, or of a list of mappings, by number."""

    def __init__(self, dataset: Any, label: str) -> None:
        self.dataset = dataset.with_format("arrow") if hasattr(dataset, "features") else dataset
        self.label = label

    def __len__(self) -> int:
        return len(self.dataset)

    def location(self, index: int) -> str:
        return f"{self.label}#{index}"

    def get(self, index: int) -> Any:
        with bad_values(self.location(index)):
            found = self.dataset[index]
            return plain_row(found, 0) if hasattr(found, "schema") else found
