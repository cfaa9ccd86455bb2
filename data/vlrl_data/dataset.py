"""Rows of a dataset by number: the good ones, found before training, the others in quarantine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from vlrl.types import Media, MediaError, Row, RowError, RowView
from vlrl_data.quarantine import Quarantine
from vlrl_data.records import BadRecord, Records
from vlrl_data.rowmaker import RowMaker

LEVELS = ("none", "rows", "headers", "decode")
AUTO = ((2_000, "decode"), (20_000, "headers"), (100_000, "rows"))  # up to so many rows, look so closely
FIRST = 2_000  # rows that are looked at even where all are too many
PARALLEL = 2_000  # media from which worker processes pay


def level_for(check: str, count: int) -> str:
    """What `auto` means for `count` rows."""
    return check if check != "auto" else next((level for most, level in AUTO if count <= most), "none")


@dataclass(frozen=True)
class Part:
    """Records with their row maker."""

    records: Records
    make: RowMaker

    def row(self, index: int) -> Row:
        """Raises RowError."""
        try:
            return self.make(self.records.get(index), index)
        except BadRecord as error:
            raise RowError(str(error)) from None


class Dataset(RowView):
    """The usable rows of some parts, in order. Rows are made when they are asked for; RowError is raised only for rows that were not looked at.

    `good` are the numbers of the usable records among the first `looked`; all of the rest, up to `total`, follow.
    """

    def __init__(self, parts: Sequence[Part], good: np.ndarray, looked: int, total: int, quarantine: Quarantine) -> None:
        self.parts, self.good, self.looked, self.total, self.quarantine = parts, good, looked, total, quarantine
        self.ends = np.cumsum([len(part.records) for part in parts])

    def __len__(self) -> int:
        return len(self.good) + self.total - self.looked

    def at(self, index: int) -> Row:
        number = int(self.good[index]) if index < len(self.good) else self.looked + index - len(self.good)
        part, place = locate(self.parts, self.ends, number)
        try:
            return part.row(place)
        except RowError as error:
            self._set_aside(number, str(error))
            raise

    def _set_aside(self, number: int, reason: str) -> None:
        part, index = locate(self.parts, self.ends, number)
        if all(bad.index != number for bad in self.quarantine.rows):
            self.quarantine.add(number, part.records.place(index), reason)
            self.quarantine.save()


def locate(parts: Sequence[Part], ends: np.ndarray, number: int) -> tuple[Part, int]:
    """The part that holds record `number`, and its place there."""
    which = int(np.searchsorted(ends, number, side="right"))
    return parts[which], number - int(ends[which]) + len(parts[which].records)


def examine(parts: Sequence[Part], check: str, quarantine: Quarantine, limit: int = 0, workers: int = 0) -> Dataset:
    """Look at all rows as closely as `check` says, and put aside what cannot be used: broken records and media, missing answers, ids seen before."""
    total = sum(len(part.records) for part in parts)
    total = min(total, limit) if limit else total
    level = level_for(check, total)
    looked = min(total, FIRST) if level == "none" else total
    ends = np.cumsum([len(part.records) for part in parts])
    seen: dict[str, str] = {}
    good: list[int] = []
    media: list[tuple[int, Media]] = []
    for number in range(looked):
        part, index = locate(parts, ends, number)
        place = part.records.place(index)
        try:
            row = part.row(index)
            if row.id in seen:
                raise RowError(f"duplicate id {row.id!r}, first at {seen[row.id]}")
        except RowError as error:
            quarantine.add(number, place, str(error))
            continue
        seen[row.id] = place
        good.append(number)
        media += [(number, medium) for medium in row.media] if level in ("headers", "decode") else []
    broken = look(media, level == "decode", workers)
    for number, reason in broken.items():
        part, index = locate(parts, ends, number)
        quarantine.add(number, part.records.place(index), reason, part.row(index).id)
    quarantine.rows.sort(key=lambda bad: bad.index)
    kept = np.array([number for number in good if number not in broken], dtype=np.int64)
    return Dataset(parts, kept, looked, total, quarantine)


def look(media: Sequence[tuple[int, Media]], whole: bool, workers: int) -> dict[int, str]:
    """Row number -> what is wrong with the first of its media that cannot be used. Each different file is looked at once."""
    jobs: dict[tuple[type, object], list[int]] = {}
    unique: dict[tuple[type, object], Media] = {}
    for number, medium in media:
        key = (type(medium), getattr(medium, "source", None) or id(medium))
        jobs.setdefault(key, []).append(number)
        unique.setdefault(key, medium)
    broken: dict[int, str] = {}
    for key, reason in zip(unique, verdicts(list(unique.values()), whole, workers)):
        for number in jobs[key] if reason else ():
            broken.setdefault(number, reason)
    return broken


def verdicts(media: Sequence[Media], whole: bool, workers: int) -> Iterable[str]:
    """For each medium, in order, why it cannot be used, or "". In worker processes where there are many and they are decoded whole."""
    if not whole or len(media) < PARALLEL or workers == 1:
        return (verdict((medium, whole)) for medium in media)
    return _in_processes(media, workers)


def _in_processes(media: Sequence[Media], workers: int) -> Iterator[str]:
    with ProcessPoolExecutor(workers or None, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(verdict, [(medium, True) for medium in media], chunksize=64)


def verdict(job: tuple[Media, bool]) -> str:
    """Why a medium cannot be used, or ""."""
    medium, whole = job
    try:
        medium.check()
        if whole:
            medium.load()
    except MediaError as error:
        return str(error)
    return ""
