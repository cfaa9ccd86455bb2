"""Sources of rows: files of records, folders of pictures, WebDataset tars, Hugging Face datasets."""

from __future__ import annotations

import glob
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vlrl.registry import ConfigError, register
from vlrl.stages import Source
from vlrl.types import Row
from vlrl_data.anymedia import WEB, Place
from vlrl_data.dataset import Dataset, Part, examine
from vlrl_data.families import Family, by_name, recognise
from vlrl_data.fetch import Web
from vlrl_data.media import LIMITS, Limits
from vlrl_data.quarantine import LOG, Quarantine
from vlrl_data.records import OPENERS, BadRecord, Records, open_records
from vlrl_data.rowmaker import Options, RowMaker
from vlrl_data.tools.difficulty import load as load_rates
from vlrl_data.video import SAMPLED, Frames

if TYPE_CHECKING:
    from vlrl.run import Run


@dataclass(frozen=True, kw_only=True)
class Recorded(Source):
    """What all datasets of records share.

    `format`: a record family, or auto. `fields` renames columns ({theirs: ours}). `media_root`: folders that relative media paths start
    from (default: the folder of the file). `task`, `rewards`, `system` and `question` (where a record has none) are set for all rows.
    `check_level`: how closely rows are looked at before training: rows, headers (media are opened), decode (media are decoded), none (the
    first 2,000), auto (by number of rows). `max_bad`: the share of unusable rows that stops the run; they go to `quarantine` (default:
    quarantine.jsonl in the run's folder). `row_pixels`: pixels of a row's pictures together; rows above it are resized or dropped
    (`over_budget`). `difficulty`: a table of `vlrl data difficulty`, whose rates go to `meta.pass_rate`. `limit`: the first so many records.
    `workers`: processes that decode media for the check (0: one per core).
    """

    format: str = "auto"
    fields: Mapping[str, str] = field(default_factory=dict)
    media_root: tuple[str, ...] | str = ()
    question: str = ""
    task: str = ""
    rewards: tuple[str, ...] = ()
    system: str = ""
    answers: Literal["required", "optional"] = "required"
    check_level: Literal["auto", "none", "rows", "headers", "decode"] = "auto"
    max_bad: float = 0.1
    quarantine: str = ""
    difficulty: str = ""
    row_pixels: int = 0
    over_budget: Literal["resize", "drop"] = "resize"
    limit: int = 0
    workers: int = 0
    frames: Frames = SAMPLED
    limits: Limits = LIMITS
    web: Web = WEB
    _state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.format != "auto":
            by_name(self.format)
        if not 0 <= self.max_bad <= 1:
            raise ConfigError(f"max_bad: {self.max_bad} is not a share between 0 and 1")

    @abstractmethod
    def opened(self) -> Iterator[tuple[Records, str, str]]:
        """(records, folder that relative paths start from, stem for ids) of each file."""

    @abstractmethod
    def label(self) -> str:
        """What it is, for messages."""

    def check(self, run: Run) -> None:
        self._state["output"] = run.output

    def __call__(self) -> Sequence[Row]:
        return self.read()

    def read(self) -> Dataset:
        """The usable rows. Raises ConfigError if there are too many others."""
        output = self._state.get("output")
        path = Path(self.quarantine) if self.quarantine else output / "quarantine.jsonl" if output else None
        quarantine = Quarantine(f"{self.name} {self.label()}", path)
        parts = [self._part(*found) for found in self.opened()]
        dataset = examine(parts, self.check_level, quarantine, self.limit, self.workers)
        self._state["rows"] = dataset
        if quarantine.rows:
            quarantine.save()
        quarantine.judge(len(dataset) + len(quarantine.rows), self.max_bad)
        return dataset

    def metrics(self) -> dict[str, float]:
        rows = self._state.get("rows")
        return {"data/quarantined": float(len(rows.quarantine.rows))} if rows is not None and rows.quarantine.rows else {}

    def chosen(self, records: Records) -> tuple[Family, str]:
        """The record family and why: the first record that can be read decides."""
        if self.format != "auto":
            return by_name(self.format), "set by `format`"
        for index in range(len(records)):
            try:
                record = records.get(index)
            except BadRecord:
                continue
            if isinstance(record, Mapping):
                record = {self.fields.get(name, name): value for name, value in record.items()}
            return recognise(record)
        raise ConfigError(f"{self.label()}: no record can be read")

    def _part(self, records: Records, folder: str, stem: str) -> Part:
        family, why = self.chosen(records)
        LOG.info("%s: read as %s, because %s", stem, family.name, why)
        own = (self.media_root,) if isinstance(self.media_root, str) else self.media_root
        place = Place(own or (folder,), self.limits, self.frames, self.web)
        rates = load_rates(Path(self.difficulty)) if self.difficulty else {}
        names = ("fields", "question", "task", "rewards", "system", "answers", "row_pixels", "over_budget")
        return Part(records, RowMaker(family, place, Options(rates=rates, **{name: getattr(self, name) for name in names}), stem))


def expand(path: str | tuple[str, ...], endings: Sequence[str]) -> list[Path]:
    """Files of a path, a glob, a folder (its files with a known ending), "a:b", or several of these. Raises ConfigError for what is not there."""
    found: list[Path] = []
    for item in (path,) if isinstance(path, str) else path:
        home = Path(item).expanduser()
        if home.is_file():
            files = [home]
        elif home.is_dir():
            files = sorted(file for file in home.iterdir() if file.suffix.lower() in endings)
        elif ":" in item and all(Path(part).is_file() for part in item.split(":")):
            files = [Path(part) for part in item.split(":")]
        else:
            files = [Path(file) for file in sorted(glob.glob(str(home), recursive=True)) if Path(file).is_file()]
        if not files:
            raise ConfigError(f"path: nothing at {item!r}; give a file ({', '.join(endings)}), a folder of such files, or a glob")
        found += files
    return found


@register("files")
@dataclass(frozen=True, kw_only=True)
class Files(Recorded):
    """JSON, JSONL, parquet, arrow, CSV or TSV files: `path` is a file, a folder, a glob, or a list of these."""

    path: tuple[str, ...] | str

    def label(self) -> str:
        return self.path if isinstance(self.path, str) else ", ".join(self.path)

    def opened(self) -> Iterator[tuple[Records, str, str]]:
        files = expand(self.path, tuple(OPENERS))
        for file in files:
            stem = file.stem if len({other.stem for other in files}) == len(files) else f"{file.parent.name}-{file.stem}"
            yield open_records(file), str(file.parent), stem
