"""Ranks that watch each other: a rank that is killed, stopped or out of memory ends all of them in a bounded
time, with one line.

Every rank counts up its own key in a small key-value store of rank 0 and watches the others' keys, in a
thread. A rank that fails says so in the store before it ends; a rank whose key stays the same for
`watch.rank_timeout` seconds is lost. A collective that fails (the peer closed its connection) asks here who
is gone. The line is printed by the rank that failed itself, else by the first rank that is left.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from vlrl.services.failures import RankLostError
from vlrl.trainer.ranks.collectives import gather

log = logging.getLogger("vlrl")

_BEAT = 0.5  # seconds
_PATIENCE = 4.0  # seconds without a beat until a rank whose connection broke counts as gone
_BROKEN = re.compile(
    r"closed by peer|connection (was )?(re(set|fused)|closed|aborted)|broken pipe|timed out "
    r"waiting|socket|gloo|nccl|"
    r"collective|monitoredBarrier|process group|peer",
    re.IGNORECASE,
)


class RankMonitor:
    """Watches the ranks of a run while the context is open; does nothing for a single process.

    Args:
        accelerator: Of the run.
        timeout: Seconds without a beat after which a rank is lost.
        at_end: Called before this process is ended from the watching thread.
    """

    def __init__(self, accelerator: Any, timeout: float, at_end: Callable[[], None] = lambda: None) -> None:
        self.rank, self.ranks = accelerator.process_index, accelerator.num_processes
        self.accelerator, self.timeout, self.at_end = accelerator, timeout, at_end
        self.failing = False  # the main thread already knows of a failure
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._seen: dict[int, tuple[int, float]] = {}  # rank -> its last beat, and when it changed
        self._names: list[str] = []
        self._round = 0.0  # when the watch last began to ask the store
        self._store: Any = None

    def __enter__(self) -> RankMonitor:
        if self.ranks > 1:
            self._open()
            self._round = time.monotonic()
            threading.Thread(target=self._watch, name="ranks", daemon=True).start()
            if self.rank:
                threading.Thread(target=self._watch_store, name="rank 0", daemon=True).start()
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if self.ranks > 1:
            if kind is None:
                # rank 0 holds the store: if it left first, the others would take that for a lost rank
                self.accelerator.wait_for_everyone()
            self._end.set()

    def _open(self) -> None:
        from torch.distributed import TCPStore

        # a store of its own: a call that waits in torch's would hold up the beats
        host = os.environ.get("MASTER_ADDR", "localhost")
        limit = timedelta(seconds=max(5.0, min(self.timeout, 60.0)))
        if self.rank == 0:
            self._store = TCPStore(host, 0, None, True, limit, wait_for_workers=False)
        port = gather(self.accelerator, [self._store.port if self.rank == 0 else 0])[0][0]
        if self.rank:
            self._store = TCPStore(host, port, None, False, limit, wait_for_workers=False)
        names = gather(self.accelerator, [f"pid {os.getpid()} on {socket.gethostname()}"])
        self._names = [name for (name,) in names]
        self._seen = {rank: (0, time.monotonic()) for rank in range(self.ranks)}

    def fail(self, line: str) -> None:
        """Tell the other ranks why this one ends."""
        self.failing = True
        if self._store is not None:
            try:
                with self._lock:
                    self._store.set(f"failed/{self.rank}", line)
            except RuntimeError as error:  # rank 0 is gone too
                log.debug("ranks: %s", error)

    def cause(self, error: BaseException) -> RankLostError | None:
        """The failure of another rank behind an error of a collective; None where the error is this rank's
        own. Waits a few seconds for the beats."""
        if (
            self.ranks == 1
            or not isinstance(error, RuntimeError)
            or not _BROKEN.search(f"{type(error).__name__} {error}")
        ):
            return None
        self.failing = True
        until = time.monotonic() + _PATIENCE + 4 * _BEAT
        while time.monotonic() < until:
            if found := self._lost(_PATIENCE):
                return found
            time.sleep(_BEAT / 2)
        return None

    def _lost(self, patience: float) -> RankLostError | None:
        """The failure of the ranks that have failed or have not beaten for `patience` seconds; None while all
        are there."""
        with self._lock:
            said = self._failures()
            now = time.monotonic()
            silent = [
                rank for rank, (_, then) in self._seen.items() if rank != self.rank and now - then > patience
            ]
        if said:
            rank, line = said
            failure = RankLostError(f"rank {rank} ({self._names[rank]}) failed: {line}")
            failure.quiet = True  # that rank prints it
            return failure
        return self._silent(silent) if silent else None

    def _silent(self, silent: Sequence[int]) -> RankLostError:
        """The failure of ranks that do not answer."""
        names = ", ".join(f"rank {rank} ({self._names[rank]})" for rank in silent)
        failure = RankLostError(
            f"{names} {'does' if len(silent) == 1 else 'do'} not answer: killed, stopped, out of memory, "
            "or its machine is gone; all ranks end. "
            "Go on with --resume from the last checkpoint"
        )
        failure.quiet = self.rank != min(rank for rank in range(self.ranks) if rank not in silent)
        return failure

    def _failures(self) -> tuple[int, str] | None:
        try:
            for rank in range(self.ranks):
                if rank != self.rank and self._store.check([f"failed/{rank}"]):
                    return rank, self._store.get(f"failed/{rank}").decode()
        except RuntimeError as error:
            log.debug("ranks: %s", error)
        return None

    def _watch(self) -> None:
        while not self._end.wait(_BEAT):
            self._round = time.monotonic()
            try:
                with self._lock:
                    beats = {
                        # adding 0 reads without waiting; `get` would block on a key that is not there
                        rank: self._store.add(f"beat/{rank}", int(rank == self.rank))
                        for rank in range(self.ranks)
                    }
                    now = time.monotonic()
                    self._seen.update(
                        {rank: (beat, now) for rank, beat in beats.items() if beat != self._seen[rank][0]}
                    )
            except RuntimeError as error:  # rank 0, which holds the store, does not answer
                log.debug("ranks: %s", error)
                with self._lock:
                    now = time.monotonic()
                    # nothing is known of the other ranks without the store: only rank 0 grows old
                    self._seen.update({rank: (beat, now) for rank, (beat, _) in self._seen.items() if rank})
            if not self.failing and not self._end.is_set() and (found := self._lost(self.timeout)):
                self._leave(found)

    def _watch_store(self) -> None:
        """End this rank where rank 0, which holds the store, stopped in the middle of an answer: `_watch`
        then waits for it without a limit."""
        while not self._end.wait(_BEAT):
            if time.monotonic() - self._round > self.timeout and not self._end.is_set():
                silent = sorted(
                    rank
                    for rank, (_, then) in list(self._seen.items())
                    if not rank or (rank != self.rank and self._round - then > self.timeout)
                )
                self._leave(self._silent(silent))

    def _leave(self, failure: RankLostError) -> None:
        if not failure.quiet:
            sys.stderr.write(f"vlrl: {failure}\n")
            sys.stderr.flush()
        self.at_end()
        # not sys.exit: this is a thread, and the main one may wait in a collective without end
        os._exit(failure.exit_code)
