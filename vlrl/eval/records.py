"""Raw records of a suite, with the hub's field names: from the hub, from a local folder laid out as on the
hub, or from the packaged fixture."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl.eval.fixtures import write_fixture
from vlrl.eval.scorer import Record
from vlrl.eval.suite import Suite
from vlrl.plugins.registry import ConfigError
from vlrl.services.hub import hub_reachable, in_hub_cache

log = logging.getLogger("vlrl")
FORMATS = (".parquet", ".jsonl", ".json")


@dataclass(frozen=True)
class SuiteData:
    """A suite with its records and their origin: "hub", "folder" or "fixture" (a few synthetic records in the
    same shape: not the benchmark)."""

    suite: Suite
    records: list[Record]
    origin: str
    folder: Path | None = None

    def __len__(self) -> int:
        return len(self.records)

    @property
    def ids(self) -> list[str]:
        """The identity of every record, in order. Raises ConfigError if two records share one."""
        names = [self.suite.identity(record, number) for number, record in enumerate(self.records)]
        if len(set(names)) != len(names):
            double = next(name for name in names if names.count(name) > 1)
            raise ConfigError(
                f"suite {self.suite.name!r}: two rows have the id {double!r}; set data.id to an expression "
                "that tells them apart"
            )
        return names


def read_records(
    suite: Suite, where: str = "auto", media: str = "", limit: int = 0, cache: Path | None = None
) -> SuiteData:
    """Reads the records of a suite.

    Args:
        suite: The suite.
        where: "hub", "fixture", a folder or data file, or "auto": the hub, and the fixture (with a warning)
            where the hub cannot be reached.
        media: The folder that media paths are relative to, where it is not the data folder.
        limit: Keeps only the first records (0: all).
        cache: Where fixtures are written (default: the system's folder for temporary files).

    Raises:
        ConfigError: Nothing can be read.
    """
    if where == "fixture":
        found = _read_fixture(suite, cache)
    elif where in ("hub", "auto"):
        found = _read_hub(suite, where == "auto", cache)
    else:
        root = Path(where).expanduser()
        found = SuiteData(
            suite, list(_read_folder(suite, root)), "folder", root if root.is_dir() else root.parent
        )
    if media:
        found = SuiteData(suite, found.records, found.origin, Path(media).expanduser())
    records = explode_records(found.records, suite.data.explode)
    if limit:
        records = records[:limit]
    return SuiteData(
        suite, [{**record, "_folder": found.folder} for record in records], found.origin, found.folder
    )  # scorers may open pictures


def explode_records(records: list[Record], name: str) -> list[Record]:
    """One record per entry of the list in field `name` ("": no change); a record whose field is no list stays
    one record."""
    if not name:
        return records
    return [
        {**record, name: entry}
        for record in records
        for entry in (record[name] if isinstance(record[name], (list, tuple)) else [record[name]])
    ]


def _read_fixture(suite: Suite, cache: Path | None) -> SuiteData:
    folder = write_fixture(suite, cache)
    return SuiteData(suite, list(_read_folder(suite, folder)), "fixture", folder)


def _read_hub(suite: Suite, fall_back: bool, cache: Path | None) -> SuiteData:
    try:
        return SuiteData(suite, list(_download(suite)), "hub", None)
    except (OSError, ValueError, ImportError) as error:  # no network, gated, removed
        reason = (
            f"{suite.data.hub} could not be read ({type(error).__name__}: {str(error).splitlines()[0][:120]})"
        )
        if not fall_back:
            raise ConfigError(
                f"{reason}; give a local copy with --data FOLDER, or try the command on --data fixture"
            ) from None
        data = _read_fixture(suite, cache)
        log.warning(
            (
                "%s; using the fixture: %d synthetic rows in its shape. Scores on it say nothing about the "
                "benchmark."
            ),
            reason,
            len(data),
        )
        return data


def _download(suite: Suite) -> Iterable[Record]:
    if (
        not hub_reachable()
    ):  # only the cache can be read then; without this switch the client libraries retry for minutes
        if not in_hub_cache(suite.data.hub):
            raise OSError("no connection to the hub, and no earlier download")
        os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets
    import huggingface_hub.constants

    if os.environ.get("HF_HUB_OFFLINE") == "1":
        datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True

    split = datasets.load_dataset(suite.data.hub, suite.data.config or None, split=suite.data.split)
    for name, feature in (split.features or {}).items():
        if isinstance(feature, datasets.Image):
            split = split.cast_column(name, datasets.Image(decode=False))
    yield from split


def data_files(suite: Suite, root: Path) -> list[Path]:
    """The files of the suite's split under a folder laid out as on the hub. Raises ConfigError with the
    patterns that were tried."""
    if root.is_file():
        return [root]
    config, split = suite.data.config, suite.data.split
    patterns = [f"{config}/{split}*", f"{config}/*"] if config else []
    patterns += [f"data/{split}-*", f"data/{split}*", f"{split}*", "data/*", "*"]
    for pattern in patterns:
        files = sorted(
            path
            for path in root.glob(pattern)
            if path.suffix in FORMATS and path.is_file() and not path.name.startswith("dataset_info")
        )
        if files:
            return files
    raise ConfigError(
        f"suite {suite.name!r}: no data in {root}; looked for "
        f"{', '.join(p + '{.parquet,.jsonl,.json}' for p in patterns[:3])}"
    )


def _read_folder(suite: Suite, root: Path) -> Iterable[Record]:
    if not root.exists():
        raise ConfigError(
            f"--data {root}: no such folder; give a folder laid out as {suite.data.hub} is on the hub, or "
            "`hub`, or `fixture`"
        )
    for path in data_files(suite, root):
        yield from read_file(path)


def read_file(path: Path) -> Iterable[dict[str, Any]]:
    """The records of a parquet, JSONL or JSON file. Raises ConfigError with the line that is not JSON."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        for batch in pq.ParquetFile(path).iter_batches(256):
            yield from batch.to_pylist()
    elif path.suffix == ".json":
        tree = json.loads(path.read_text(encoding="utf-8"))
        yield from (tree if isinstance(tree, list) else [{"id": key, **value} for key, value in tree.items()])
    else:
        yield from read_jsonl(path)


def read_jsonl(path: Path) -> Iterable[dict[str, Any]]:
    """The objects of a JSONL file; empty lines are skipped. Raises ConfigError with the number of a line that
    holds no object."""
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: not JSON ({error})") from None
            if not isinstance(value, dict):
                raise ConfigError(f"{path}:{number}: expected an object, got {type(value).__name__}")
            yield value
