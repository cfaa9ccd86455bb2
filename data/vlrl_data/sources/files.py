"""Files of records as a source, and what all sources of records share."""

from __future__ import annotations

import glob
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vlrl.plugins.registry import ConfigError, register, suggest
from vlrl.plugins.stages import Source, State, transient
from vlrl.types import MediaError, Row, RowError
from vlrl_data.dataset import Dataset, DatasetPart, check_records
from vlrl_data.media.fetch import Web
from vlrl_data.media.images import LIMITS, ImageLimits
from vlrl_data.media.parse import WEB, MediaSettings
from vlrl_data.media.video import SAMPLED, Frames
from vlrl_data.quarantine import LOG, Quarantine
from vlrl_data.record_families import RecordFamily, by_name, recognise
from vlrl_data.record_families.base import inside, renamed
from vlrl_data.records import KINDS, SUFFIXES, BadRecord, Records, open_records, suffix_of
from vlrl_data.row_builder import RowBuilder, RowOptions
from vlrl_data.tools.rollout_rewards import load_pass_rates

if TYPE_CHECKING:
    from vlrl.plugins.contexts import PhaseContext


PROBED_RECORDS = 10_000  # records that are tried for the record family
LOOKED_AT = 8  # records of each file that a dry run reads


@dataclass
class RecordSourceState(State):
    """The run's folder, and the rows of the last read."""

    output: Path | None = transient()
    rows: Dataset | None = transient()


@dataclass(frozen=True, kw_only=True)
class RecordSource(Source):
    """Base of sources of records.

    `fields` renames columns ({theirs: ours}; theirs may be a path: extra_info.task). `media_root`: folders of
    relative media paths (default: that of the file); by `outside_media` they may leave these (allow, refuse,
    or auto: refuse where `media_root` is given). `task`, `rewards`, `system`, `question` (where there is
    none) are set for all rows, `target` where there is none. `check_level`: rows, headers (media are opened),
    decode, none (the first 2,000), auto (by their number); beyond a share `max_bad` of unusable rows it
    stops, others go to `quarantine`. Rows of more than `row_pixels` are resized or dropped (`over_budget`).
    `units` of gold boxes: original, per_mille, unit, auto (the family's). `difficulty`: that of
    `vlrl data difficulty`. `limit`: records. `workers`: of the check.
    """

    state_class = RecordSourceState
    format: str = "auto"
    fields: Mapping[str, str] = field(default_factory=dict)
    media_root: tuple[str, ...] | str = ()
    outside_media: Literal["auto", "allow", "refuse"] = "auto"
    question: str = ""
    task: str = ""
    rewards: tuple[str, ...] = ()
    system: str = ""
    target: str = ""
    answers: Literal["required", "optional"] = "required"
    check_level: Literal["auto", "none", "rows", "headers", "decode"] = "auto"
    max_bad: float = 0.1
    max_characters: int = 1_000_000
    quarantine: str = ""
    difficulty: str = ""
    row_pixels: int = 0
    over_budget: Literal["resize", "drop"] = "resize"
    units: Literal["auto", "original", "per_mille", "unit"] = "auto"
    limit: int = 0
    workers: int = 0
    frames: Frames = SAMPLED
    limits: ImageLimits = LIMITS
    web: Web = WEB

    def __post_init__(self) -> None:
        if self.format != "auto":
            by_name(self.format)
        if not 0 <= self.max_bad <= 1:
            raise ConfigError(f"max_bad: {self.max_bad} is not a share between 0 and 1")
        if self.max_characters < 1:
            raise ConfigError(f"max_characters: {self.max_characters} must be at least 1")

    @abstractmethod
    def open(self) -> Iterator[tuple[Records, str, str]]:
        """(records, folder that relative media paths start from, stem of row ids) of each file."""

    @abstractmethod
    def label(self) -> str:
        """What is read, for messages."""

    def check(self, phase: PhaseContext) -> None:
        self.state.output = phase.output

    def __call__(self) -> Sequence[Row]:
        return self.read()

    def look(self) -> str:
        total, families = 0, dict[str, None]()
        for records, folder, stem in self.open():
            for index in range(min(LOOKED_AT, len(records))):
                _check_renamed(records, index, self.fields)
            part = self._part(records, folder, stem)
            for index in range(min(LOOKED_AT, len(records))):
                _check_row(part, index)
            total += len(records)
            families[part.builder.family.name] = None
        return f"{self.label()}: {total:,} records, read as {', '.join(families)}"

    def read(self) -> Dataset:
        """The usable rows. Raises ConfigError if the share of unusable ones among the checked ones is above
        `max_bad`."""
        dataset = self.load()
        dataset.quarantine.raise_if_above(self.max_bad, total=dataset.checked)
        return dataset

    def load(self) -> Dataset:
        """The usable rows, however few they are; the others are written to the quarantine file."""
        output = self.state.output
        path = Path(self.quarantine) if self.quarantine else output / "quarantine.jsonl" if output else None
        quarantine = Quarantine(f"{self.name} {self.label()}", path)
        parts = [self._part(*opened) for opened in self.open()]
        dataset = check_records(parts, self.check_level, quarantine, self.limit, self.workers)
        self.state.rows = dataset
        if quarantine.rows:
            quarantine.save()
        return dataset

    def metrics(self) -> dict[str, float]:
        rows = self.state.rows
        return (
            {"data/quarantined": float(len(rows.quarantine.rows))}
            if rows is not None and rows.quarantine.rows
            else {}
        )

    def family_of(self, records: Records) -> tuple[RecordFamily, str]:
        """The record family and the reason for it: the first record that some family recognises decides.

        Raises ConfigError, with the fault of the first record, if none of the first `PROBED_RECORDS` is
        recognised.
        """
        if self.format != "auto":
            return by_name(self.format), "set by `format`"
        unreadable, unknown = "", None
        for index in range(min(len(records), PROBED_RECORDS)):
            try:
                record = records.get(index)
                if isinstance(record, Mapping):
                    record = renamed(record, self.fields)
                return recognise(record)
            except BadRecord as error:
                unreadable = unreadable or f"; the first: {error}"
            except ConfigError as error:
                unknown = unknown or error
        raise unknown or ConfigError(
            f"{self.label()}: none of {len(records)} records can be read{unreadable}"
        )

    def _check_fields(self, records: Records, stem: str) -> None:
        """Raise ConfigError for a name in `fields` that no probed record has."""
        if not self.fields:
            return
        known: dict[str, None] = {}
        for index in range(min(len(records), PROBED_RECORDS)):
            try:
                record = records.get(index)
            except BadRecord:
                continue
            paths = [theirs for theirs in self.fields if inside(record, theirs) is not None]
            known |= dict.fromkeys([*record, *paths]) if isinstance(record, Mapping) else {}
        for theirs, ours in self.fields.items():
            if known and (theirs not in known or not ours):
                what = (
                    f"no record of {stem} has the field {theirs!r}"
                    if ours
                    else f"{theirs!r} has no name here"
                )
                raise ConfigError(f"fields: {what}; write {{their name: our name}}.{suggest(theirs, known)}")

    def _part(self, records: Records, folder: str, stem: str) -> DatasetPart:
        self._check_fields(records, stem)
        family, why = self.family_of(records)
        LOG.info("%s: read as %s, because %s", stem, family.name, why)
        roots = (self.media_root,) if isinstance(self.media_root, str) else self.media_root
        confined = self.outside_media == "refuse" or (self.outside_media == "auto" and any(roots))
        media = MediaSettings(roots or (folder,), self.limits, self.frames, self.web, confined)
        pass_rates = load_pass_rates(Path(self.difficulty)) if self.difficulty else {}
        names = (
            "fields",
            "question",
            "task",
            "rewards",
            "system",
            "target",
            "answers",
            "row_pixels",
            "over_budget",
            "max_characters",
            "units",
        )
        options = RowOptions(pass_rates=pass_rates, **{name: getattr(self, name) for name in names})
        written = getattr(records, "written", False)
        return DatasetPart(records, RowBuilder(family, media, options, stem, written))


def _check_renamed(records: Records, index: int, fields: Mapping[str, str]) -> None:
    """Raise ConfigError for a record that cannot be read or lacks a column of `fields`."""
    try:
        record = records.get(index)
    except BadRecord as error:
        raise ConfigError(str(error)) from None
    gone = [
        name
        for name in fields
        if isinstance(record, Mapping) and name not in record and inside(record, name) is None
    ]
    if gone:
        columns = ", ".join(map(str, record))
        place = records.location(index)
        raise ConfigError(f"{place}: no column {gone[0]!r}, which `fields` renames; it has {columns}")


def _check_row(part: DatasetPart, index: int) -> None:
    """Raise ConfigError for a record whose row or media cannot be read."""
    try:
        for medium in part.build(index).row.media:
            medium.check()
    except (RowError, MediaError) as error:
        place = part.records.location(index)
        raise ConfigError(f"{place}: {str(error).removeprefix(f'{place}: ')}") from None


def expand_paths(
    path: str | tuple[str, ...], suffixes: Sequence[str], kinds: str = "", download: str = ""
) -> list[Path]:
    """Files of a path, a glob, a folder (its files with a known suffix, or those of its folder `data`), "a:b"
    or a list of these.

    Raises ConfigError, with `kinds` of files and how to `download` them, for what is not there.
    """
    found: list[Path] = []
    for item in (path,) if isinstance(path, str) else path:
        expanded = Path(item).expanduser()
        try:
            files = _files_at(item, expanded, suffixes)
        except OSError as error:
            raise ConfigError(f"path: {item!r} cannot be read: {error.strerror or error}") from None
        if not files:
            fetch = f"get it with `{download}`, or " if download else ""
            raise ConfigError(
                f"path: nothing at {item!r}; {fetch}give a file ({kinds or ', '.join(suffixes)}), a folder "
                "of such files, or a glob"
            )
        found += files
    return found


def _files_at(item: str, expanded: Path, suffixes: Sequence[str]) -> list[Path]:
    if os.path.isfile(expanded):
        return [expanded]
    if os.path.isdir(expanded):
        found = sorted(file for file in expanded.iterdir() if file.name.lower().endswith(tuple(suffixes)))
        inner = expanded / "data"  # data sets of the hub have their files there
        return found or (_files_at(item, inner, suffixes) if inner.is_dir() else [])
    if ":" in item and all(os.path.isfile(part) for part in item.split(":")):
        return [Path(part) for part in item.split(":")]
    return [Path(file) for file in sorted(glob.glob(str(expanded), recursive=True)) if os.path.isfile(file)]


def _stem(file: Path) -> str:
    """The name of a file without its suffixes: rows of rows.jsonl.gz."""
    return file.name[: -len("".join(suffix_of(file)))]


@register("files")
@dataclass(frozen=True, kw_only=True)
class Files(RecordSource):
    """JSON, JSONL, parquet, arrow, CSV or TSV files, the texts also as .gz, .bz2 or .zst: `path` is a file, a
    folder, a glob, or a list of these. Fields of CSV and TSV files are text. `download`: the command that
    gets what is missing, for the message that says so."""

    path: tuple[str, ...] | str
    download: str = ""

    def label(self) -> str:
        return self.path if isinstance(self.path, str) else ", ".join(self.path)

    def open(self) -> Iterator[tuple[Records, str, str]]:
        files = expand_paths(self.path, SUFFIXES, KINDS, self.download)
        for file in files:
            stem = _stem(file)
            if len({_stem(other) for other in files}) < len(files):
                stem = f"{file.parent.name}-{stem}"
            yield open_records(file), str(file.parent), stem
