"""The usable rows of a dataset, by number: records are checked before training, and the others are
quarantined with a reason."""

from __future__ import annotations

import itertools
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from vlrl.types import Media, MediaError, Row, RowError, RowView
from vlrl_data.quarantine import LOG, Quarantine
from vlrl_data.records import BadRecord, Records
from vlrl_data.row_builder import BuiltRow, RowBuilder

AUTO_LEVELS = ((2_000, "decode"), (20_000, "headers"), (100_000, "rows"))  # (most rows, check level)
UNCHECKED_HEAD = 2_000  # records that level "none" still checks
PARALLEL_MEDIA = 2_000  # media from which worker processes are faster


def resolve_check_level(check: str, count: int) -> str:
    """The check level for `count` rows, where `auto` chooses by their number."""
    return check if check != "auto" else next((level for most, level in AUTO_LEVELS if count <= most), "none")


@dataclass(frozen=True)
class DatasetPart:
    """Records with the builder of their rows. Of the checked records, `dropped` counts columns that rows do
    not carry, `guessed` what was assumed to read them."""

    records: Records
    builder: RowBuilder
    dropped: Counter[str] = field(default_factory=Counter, compare=False)
    guessed: Counter[str] = field(default_factory=Counter, compare=False)

    def build(self, index: int) -> BuiltRow:
        """The row of a record, with its place. Raises RowError."""
        built = self.build_unplaced(index)
        return built._replace(row=replace(built.row, origin=self.records.location(index)))

    def build_unplaced(self, index: int) -> BuiltRow:
        """The row of a record without its place (`origin`), for checks. Raises RowError."""
        try:
            return self.builder.build(self.records.get(index), index)
        except BadRecord as error:
            raise RowError(str(error)) from None


class Dataset(RowView):
    """The usable rows of some parts, in order. A row is built when it is asked for; only rows that were not
    checked raise RowError.

    `usable` are the numbers of the usable records among the first `checked`; all records from `checked` up to
    `total` follow.
    """

    def __init__(
        self,
        parts: Sequence[DatasetPart],
        usable: np.ndarray,
        checked: int,
        total: int,
        quarantine: Quarantine,
    ) -> None:
        self.parts, self.usable, self.checked, self.total, self.quarantine = (
            parts,
            usable,
            checked,
            total,
            quarantine,
        )
        self.ends = np.cumsum([len(part.records) for part in parts])
        self._refused: set[int] = set()  # numbers of records that were not checked and could not be used

    def __len__(self) -> int:
        return len(self.usable) + self.total - self.checked

    def number(self, index: int) -> int:
        """The number of a row's record."""
        return (
            int(self.usable[index]) if index < len(self.usable) else self.checked + index - len(self.usable)
        )

    def at(self, index: int) -> Row:
        number = self.number(index)
        part, place = find_part(self.parts, self.ends, number)
        try:
            return part.build(place).row
        except RowError as error:
            self._quarantine(number, str(error))
            raise

    def dropped_columns(self) -> dict[str, int]:
        """Column -> number of checked records that have it and whose rows do not carry it."""
        return dict(sum((part.dropped for part in self.parts), Counter()).most_common())

    def guesses(self) -> dict[str, int]:
        """What was assumed to read checked records -> their number."""
        return dict(sum((part.guessed for part in self.parts), Counter()).most_common())

    @property
    def block_ends(self) -> np.ndarray:
        """Row numbers where blocks end: rows of one block (row groups, a tar file) are cheap to read
        together. Without blocks: one per part."""
        ends = [
            np.asarray(getattr(part.records, "block_ends", [len(part.records)])) + end - len(part.records)
            for part, end in zip(self.parts, self.ends)
        ]
        numbers = np.minimum(np.concatenate(ends), self.total)
        before = np.searchsorted(self.usable, numbers) + np.maximum(numbers - self.checked, 0)
        return np.unique(before[before > 0])

    def _quarantine(self, number: int, reason: str) -> None:
        if number not in self._refused:
            self._refused.add(number)
            part, index = find_part(self.parts, self.ends, number)
            self.quarantine.append(number, part.records.location(index), reason)


def find_part(parts: Sequence[DatasetPart], ends: np.ndarray, number: int) -> tuple[DatasetPart, int]:
    """The part that holds record `number`, and the record's index there."""
    which = int(np.searchsorted(ends, number, side="right"))
    return parts[which], number - int(ends[which]) + len(parts[which].records)


def check_records(
    parts: Sequence[DatasetPart], check: str, quarantine: Quarantine, limit: int = 0, workers: int = 0
) -> Dataset:
    """Check all records at level `check`, and quarantine broken records and media, rows that fail validation,
    and repeated ids."""
    total = sum(len(part.records) for part in parts)
    total = min(total, limit) if limit else total
    level = resolve_check_level(check, total)
    checked = min(total, UNCHECKED_HEAD) if level == "none" else total
    ends = np.cumsum([len(part.records) for part in parts])
    first_with_id: dict[str, str] = {}
    usable: list[int] = []
    media: list[tuple[int, Media]] = []
    places = ((part, index) for part in parts for index in range(len(part.records)))
    for number, (part, index) in enumerate(itertools.islice(places, checked)):
        location = part.records.location(index)
        try:
            built = part.build_unplaced(index)
            if built.row.id in first_with_id:
                raise RowError(f"duplicate id {built.row.id!r}, first at {first_with_id[built.row.id]}")
        except RowError as error:
            quarantine.add(number, location, str(error))
            continue
        part.dropped.update(built.dropped)
        part.guessed.update(built.guessed)
        first_with_id[built.row.id] = location
        usable.append(number)
        media += [(number, medium) for medium in built.row.media] if level in ("headers", "decode") else []
    for part in parts:
        for what, rows in part.guessed.items():
            LOG.warning("%s: assumed for %d rows: %s", part.builder.stem, rows, what)
    broken = check_media(media, level == "decode", workers)
    for number, reason in broken.items():
        part, index = find_part(parts, ends, number)
        quarantine.add(number, part.records.location(index), reason, part.build(index).row.id)
    quarantine.rows.sort(key=lambda row: row.index)
    kept = np.array([number for number in usable if number not in broken], dtype=np.int64)
    return Dataset(parts, kept, checked, total, quarantine)


def check_media(media: Sequence[tuple[int, Media]], decode: bool, workers: int) -> dict[int, str]:
    """Row number -> fault of the first of its media that cannot be used. Each distinct file is checked
    once."""
    numbers: dict[tuple[type, object], list[int]] = {}
    unique: dict[tuple[type, object], Media] = {}
    for number, medium in media:
        key = (type(medium), getattr(medium, "source", None) or id(medium))
        numbers.setdefault(key, []).append(number)
        unique.setdefault(key, medium)
    broken: dict[int, str] = {}
    for key, reason in zip(unique, media_faults(list(unique.values()), decode, workers)):
        for number in numbers[key] if reason else ():
            broken.setdefault(number, reason)
    return broken


def media_faults(media: Sequence[Media], decode: bool, workers: int) -> Iterable[str]:
    """For each medium, in order, why it cannot be used, or "". Many media that are to be decoded are checked
    in worker processes."""
    if not decode or len(media) < PARALLEL_MEDIA or workers == 1:
        return (media_fault((medium, decode)) for medium in media)
    return _in_processes(media, workers)


def _in_processes(media: Sequence[Media], workers: int) -> Iterator[str]:
    with ProcessPoolExecutor(workers or None, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(media_fault, [(medium, True) for medium in media], chunksize=64)


def media_fault(job: tuple[Media, bool]) -> str:
    """Why a medium cannot be used, or "". The job is (medium, whether to decode it)."""
    medium, decode = job
    try:
        medium.check()
        if decode:
            medium.load()
    except MediaError as error:
        return str(error)
    return ""
