"""Worker processes that do not stay behind.

Media of the rows to come, decoded in worker processes while the current step runs.
"""

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
    """As a pool's initializer: the worker ends when its parent does, also one that is killed, whose workers would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def decode(medium: Media) -> Any:
    """What a worker runs. A MediaError travels back to whoever asks for the picture."""
    return medium.load()


@dataclass(frozen=True, eq=False)
class Ahead(Media):
    """A medium that a worker is decoding, or has decoded. It is handed over once; a later `load` decodes again, as the medium itself would."""

    medium: Media
    result: list[Future]
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


def hold(row: Row) -> Row:
    """The row with its media decoded, each handed over once. Raises MediaError if one cannot be."""

    def held(medium: Media) -> Media:
        result: Future = Future()
        result.set_result(medium.load())
        return Ahead(medium, [result], medium.kind)

    return replace(row, images=tuple(map(held, row.images)), videos=tuple(map(held, row.videos)))


class Prefetcher:
    """Keeps up to `room` decoded media in flight. Rows that were not foreseen are given as they are."""

    def __init__(self, workers: int, room: int) -> None:
        self.pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=end_with_parent)
        self.room = room
        self.coming: OrderedDict[int, Row] = OrderedDict()

    def take(self, position: int, row: Row) -> Row:
        """The row at a position, with its decoded media if they were foreseen."""
        ready = self.coming.pop(position, None)
        return row if ready is None else ready

    def foresee(self, rows: Iterable[tuple[int, Row]]) -> None:
        """Start decoding for the rows at these positions, as far as there is room; forget what was foreseen and not taken."""
        wanted = dict(rows)
        for position in [known for known in self.coming if known not in wanted]:
            self._cancel(self.coming.pop(position))
        used = sum(len(row.media) for row in self.coming.values())
        for position, row in wanted.items():
            if position in self.coming or not row.media:
                continue
            used += len(row.media)
            if used > self.room:
                break
            self.coming[position] = replace(row, images=self._start(row.images), videos=self._start(row.videos))

    def _start(self, media: tuple[Media, ...]) -> tuple[Media, ...]:
        return tuple(Ahead(medium, [self.pool.submit(decode, medium)], medium.kind) for medium in media)

    @staticmethod
    def _cancel(row: Row) -> None:
        for medium in row.media:
            for future in getattr(medium, "result", ()):
                future.cancel()

    def close(self) -> None:
        """Stop the workers."""
        self.pool.shutdown(wait=False, cancel_futures=True)
