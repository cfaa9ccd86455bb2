"""Prefetching: the rows of the coming calls are read, and their media decoded, in threads while the current
step runs.

Threads, because what takes the time holds no interpreter lock (Pillow's, FFmpeg's and torchcodec's decoders,
zlib, reads of files) and because a decoded video would have to be copied from process to process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.types import Media, MediaKind, Row


@dataclass(frozen=True, eq=False)
class PrefetchedMedia(Media):
    """A medium that a thread decodes or has decoded. `load` hands the result over once; a later `load`
    decodes again, as the medium itself would.

    A decoding that no thread has begun is done by the caller. A MediaError of the thread is raised by `load`.
    """

    medium: Media
    result: list[Future]  # one future; empty after it was handed over
    kind: MediaKind = field(default="image")

    @property
    def key(self) -> str:
        return self.medium.key

    def load(self) -> Any:
        try:
            future = self.result.pop()
        except IndexError:
            return self.medium.load()
        return self.medium.load() if future.cancel() else future.result()

    def check(self) -> None:
        self.medium.check()


def with_decoded_media(row: Row) -> Row:
    """The row with its media decoded, each handed over once. Raises MediaError if one cannot be decoded."""

    def decoded(medium: Media) -> Media:
        result: Future = Future()
        result.set_result(medium.load())
        return PrefetchedMedia(medium, [result], medium.kind)

    return replace(
        row,
        images=tuple(map(decoded, row.images)),
        videos=tuple(map(decoded, row.videos)),
        audios=tuple(map(decoded, row.audios)),
    )


class Prefetcher:
    """`workers` threads that read rows by position and decode at most `capacity` media ahead.

    `read(position)` gives a row or raises; it is called by one thread at a time, the caller of `take`
    included, so that a source need not be thread-safe. Media are decoded in all threads at once.
    """

    def __init__(self, read: Callable[[int], Row], workers: int, capacity: int) -> None:
        self.read, self.capacity = read, capacity
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="vlrl-data")
        self.pending: dict[
            int, tuple[Future[Row], bool]
        ] = {}  # by position: the row, and whether its media are decoded ahead
        self._reading, self._counting = threading.Lock(), threading.Lock()
        self._held: dict[int, int] = {}  # position -> media that are decoded ahead for it

    def take(self, position: int) -> Row:
        """The row at a position, its media decoded or being decoded if it was started. Raises what `read`
        raises."""
        future, decoded = self.pending.pop(position, (None, False))
        try:
            return self._prepare(position, decoded) if future is None or future.cancel() else future.result()
        finally:
            with self._counting:
                self._held.pop(position, None)

    def start(self, positions: Iterable[int], decoded: Callable[[int], bool]) -> None:
        """Start on the rows at these positions, with their media where `decoded(position)`; forget earlier
        ones that are not among them."""
        wanted = list(positions)
        for position in self.pending.keys() - set(wanted):
            self._forget(position)
        for position in wanted:
            if position not in self.pending:
                self.pending[position] = (
                    self.pool.submit(self._prepare, position, decoded(position)),
                    decoded(position),
                )

    def _prepare(self, position: int, decoded: bool) -> Row:
        with self._reading:
            row = self.read(position)
        with self._counting:
            fits = decoded and sum(self._held.values()) + len(row.media) <= self.capacity
            if not fits or not row.media:
                return row
            self._held[position] = len(row.media)
        return replace(
            row,
            images=self._submit(row.images),
            videos=self._submit(row.videos),
            audios=self._submit(row.audios),
        )

    def _submit(self, media: tuple[Media, ...]) -> tuple[Media, ...]:
        return tuple(
            PrefetchedMedia(medium, [self.pool.submit(medium.load)], medium.kind) for medium in media
        )

    def _forget(self, position: int) -> None:
        future, _ = self.pending.pop(position)
        with self._counting:
            self._held.pop(position, None)
        if not future.cancel() and future.done() and future.exception() is None:
            for medium in future.result().media:
                if isinstance(medium, PrefetchedMedia):
                    for result in medium.result:
                        result.cancel()

    def close(self) -> None:
        """Stop the threads; what they have begun is finished."""
        self.pool.shutdown(wait=False, cancel_futures=True)
