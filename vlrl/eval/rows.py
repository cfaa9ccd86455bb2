"""Raw rows of a suite, with the hub's field names: from the hub, from a local folder of the same shape, or from our own fixture."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vlrl.eval.scorer import Fields
from vlrl.eval.suite import Suite
from vlrl.registry import ConfigError

log = logging.getLogger("vlrl")
FORMATS = (".parquet", ".jsonl", ".json")


@dataclass(frozen=True)
class Rows:
    """The rows of a suite and where they came from: "hub", "folder" or "fixture" (a few rows of ours in the same shape: not the benchmark)."""

    suite: Suite
    fields: list[Fields]
    origin: str
    folder: Path | None = None

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def ids(self) -> list[str]:
        """Identities, in order. Raises ConfigError if two rows share one."""
        names = [self.suite.identity(row, number) for number, row in enumerate(self.fields)]
        if len(set(names)) != len(names):
            double = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"suite {self.suite.name!r}: two rows have the id {double!r}; set data.id to an expression that tells them apart")
        return names


def read(suite: Suite, where: str = "auto", media: str = "", limit: int = 0, cache: Path | None = None) -> Rows:
    """The rows of a suite.

    `where` is "hub", "fixture", a folder or data file, or "auto": the hub, and where it cannot be reached the fixture, with a warning.
    Raises ConfigError when nothing can be read.
    """
    if where == "fixture":
        found = _fixture(suite, cache)
    elif where in ("hub", "auto"):
        found = _hub(suite, where == "auto", cache)
    else:
        root = Path(where).expanduser()
        found = Rows(suite, list(_local(suite, root)), "folder", root if root.is_dir() else root.parent)
    if media:
        found = Rows(suite, found.fields, found.origin, Path(media).expanduser())
    fields = exploded(found.fields, suite.data.explode)
    fields = [{**row, "_folder": found.folder} for row in (fields[:limit] if limit else fields)]  # scorers may have to open a row's picture
    return Rows(suite, fields, found.origin, found.folder)


def exploded(fields: list[Fields], name: str) -> list[Fields]:
    """One row per entry of the list in field `name` ("": the rows as they are); a row whose field is no list stays one row."""
    if not name:
        return fields
    return [{**row, name: entry} for row in fields for entry in (row[name] if isinstance(row[name], (list, tuple)) else [row[name]])]


def _fixture(suite: Suite, cache: Path | None) -> Rows:
    from vlrl.eval.fixtures import materialise

    folder = materialise(suite, cache)
    return Rows(suite, list(_local(suite, folder)), "fixture", folder)


def _hub(suite: Suite, fall_back: bool, cache: Path | None) -> Rows:
    try:
        return Rows(suite, list(_from_hub(suite)), "hub", None)
    except (OSError, ValueError, ImportError) as error:  # no network, gated, gone
        reason = f"{suite.data.hub} could not be read ({type(error).__name__}: {str(error).splitlines()[0][:120]})"
        if not fall_back:
            raise ConfigError(f"{reason}; give a local copy with --data FOLDER, or try the command on --data fixture") from None
        rows = _fixture(suite, cache)
        log.warning("%s; using the fixture: %d rows of ours in its shape. Figures from it say nothing about the benchmark.", reason, len(rows))
        return rows


def reachable(timeout: float = 5.0) -> bool:
    """Whether the hub's host answers. Behind a proxy this cannot be told so, and is taken to be true."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    place = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        with socket.create_connection((place.hostname or "", place.port or (443 if place.scheme == "https" else 80)), timeout):
            return True
    except OSError:
        return False


def downloaded(hub: str) -> bool:
    """Whether an earlier run left this data set in a cache of the client libraries."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    places = (
        Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets") / hub.replace("/", "___").lower(),
        home / "hub" / f"datasets--{hub.replace('/', '--')}",
    )
    return any(place.exists() for place in places)


def _from_hub(suite: Suite) -> Iterable[Fields]:
    if not reachable():  # then only what was downloaded before can be read; the client libraries would retry for minutes
        if not downloaded(suite.data.hub):
            raise OSError("no connection to the hub, and no earlier download")
        os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets
    import huggingface_hub.constants

    if os.environ.get("HF_HUB_OFFLINE") == "1":
        datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True

    data = datasets.load_dataset(suite.data.hub, suite.data.config or None, split=suite.data.split)
    for name, feature in (data.features or {}).items():
        if isinstance(feature, datasets.Image):
            data = data.cast_column(name, datasets.Image(decode=False))
    yield from data


def data_files(suite: Suite, root: Path) -> list[Path]:
    """The files of the suite's split under a folder laid out as on the hub. Raises ConfigError naming what was looked for."""
    if root.is_file():
        return [root]
    config, split = suite.data.config, suite.data.split
    patterns = [f"{config}/{split}*", f"{config}/*"] if config else []
    patterns += [f"data/{split}-*", f"data/{split}*", f"{split}*", "data/*", "*"]
    for pattern in patterns:
        files = sorted(path for path in root.glob(pattern) if path.suffix in FORMATS and path.is_file() and not path.name.startswith("dataset_info"))
        if files:
            return files
    raise ConfigError(f"suite {suite.name!r}: no data in {root}; looked for {', '.join(p + '{.parquet,.jsonl,.json}' for p in patterns[:3])}")


def _local(suite: Suite, root: Path) -> Iterable[Fields]:
    if not root.exists():
        raise ConfigError(f"--data {root}: no such folder; give a folder laid out as {suite.data.hub} is on the hub, or `hub`, or `fixture`")
    for path in data_files(suite, root):
        yield from read_file(path)


def read_file(path: Path) -> Iterable[dict[str, Any]]:
    """The rows of a parquet, JSONL or JSON file. Raises ConfigError with the line that is not JSON."""
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
    """Objects of a JSONL file; empty lines are skipped. Raises ConfigError naming the line."""
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
