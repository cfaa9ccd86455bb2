"""Prefetching: media of the coming rows are decoded in worker processes while the current step runs."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vlrl.types import Media, Row


def end_with_parent() -> None:
    """A pool's initializer: the worker ends when its parent does, also when the parent is killed (the worker would wait for ever otherwise)."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


def decode(medium: Media) -> Any:
    """Runs in a worker. A MediaError is raised where the result is read."""
    return medium.load()


@dataclass(frozen=True, eq=False)
class PrefetchedMedia(Media):
    """A medium that a worker decodes or has decoded. `load` hands the result over once; a later `load` decodes again, as the medium itself would."""

    medium: Media
    result: list[Future]  # one future; empty after it was handed over
    kind: Literal["image", "video"] = field(default="image")

    @property
    def key(self) -> str:
        return self.medium.key

    def load(self) -> Any:
        try:
            future = self.result.pop()
        except IndexError:
            return self.medium.load()
        return future.result()

    def check(self) -> None:
        self.medium.check()


def with_decoded_media(row: Row) -> Row:
    """The row with its media decoded, each handed over once. Raises MediaError if one cannot be decoded."""

    def decoded(medium: Media) -> Media:
        result: Future = Future()
        result.set_result(medium.load())
        return PrefetchedMedia(medium, [result], medium.kind)

    return replace(row, images=tuple(map(decoded, row.images)), videos=tuple(map(decoded, row.videos)))


class Prefetcher:
    """A pool of `workers` processes with at most `capacity` decoded media at a time. Rows that were not started are given as they are."""

    def __init__(self, workers: int, capacity: int) -> None:
        self.pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=end_with_parent)
        self.capacity = capacity
        self.pending: OrderedDict[int, Row] = OrderedDict()

    def take(self, position: int, row: Row) -> Row:
        """The row at a position, with its decoded media if they were started."""
        ready = self.pending.pop(position, None)
        return row if ready is None else ready

    def start(self, rows: Iterable[tuple[int, Row]]) -> None:
        """Start decoding for the rows at these positions, up to the capacity; cancel rows that were started before and are not among them."""
        wanted = dict(rows)
        for position in [known for known in self.pending if known not in wanted]:
            self._cancel(self.pending.pop(position))
        used = sum(len(row.media) for row in self.pending.values())
        for position, row in wanted.items():
            if position in self.pending or not row.media:
                continue
            used += len(row.media)
            if used > self.capacity:
                break
            self.pending[position] = replace(row, images=self._submit(row.images), videos=self._submit(row.videos))

    def _submit(self, media: tuple[Media, ...]) -> tuple[Media, ...]:
        return tuple(PrefetchedMedia(medium, [self.pool.submit(decode, medium)], medium.kind) for medium in media)

    @staticmethod
    def _cancel(row: Row) -> None:
        for medium in row.media:
            if isinstance(medium, PrefetchedMedia):
                for future in medium.result:
                    future.cancel()

    def close(self) -> None:
        """Stop the workers."""
        self.pool.shutdown(wait=False, cancel_futures=True)
