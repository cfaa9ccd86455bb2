"""What surrounds a run: the lock of its folder, its signals, the watch over its ranks, and one line for every
failure of the world around it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vlrl.plugins.registry import ConfigError
from vlrl.services.failures import (
    LockedError,
    RunFailure,
    StoppedError,
    exited,
    out_of_memory,
    place_of,
    storage_error,
)
from vlrl.trainer.ranks.collectives import agree, gather, moment_of
from vlrl.trainer.ranks.lock import RunLock
from vlrl.trainer.ranks.rank_monitor import RankMonitor
from vlrl.trainer.ranks.stopping import StopRequest

if TYPE_CHECKING:
    from vlrl.trainer.session import Session


class Guard:
    """The lock, the signals and the ranks of a run in progress."""

    def __init__(self, session: Session) -> None:
        watch = session.settings.watch
        self.accelerator = session.accelerator
        self.lock = RunLock(session.output)
        main = session.accelerator.is_main_process
        self.stop = StopRequest(session.output, watch.stop_seconds, self.lock.release, speak=main)
        self.ranks = RankMonitor(session.accelerator, watch.rank_timeout, self.lock.release)
        self.main = main

    def acquire(self) -> None:
        """Take the lock, on the main process for all ranks. Raises LockedError on all of them."""
        failure: LockedError | None = None
        if self.main:
            try:
                self.lock.acquire()
            except LockedError as error:
                failure = error
        agree(self.accelerator, failure)

    def after_step(self) -> str:
        """Why the run should stop after this step, equal on all ranks; "" to go on. All ranks call it."""
        # a signal may reach one rank before the others: a rank that stopped alone would leave them waiting
        asked = gather(self.accelerator, [self.stop.asked()])
        return next((part[0] for part in asked if part[0]), "")


@contextlib.contextmanager
def guarded(session: Session) -> Iterator[Guard]:
    """Around a run whose accelerator is made: all ranks enter it together.

    Raises:
        LockedError: The folder belongs to another process.
        StorageError, OutOfMemoryError, RankLostError: For errors that mean this.
        RunFailure: For code that calls exit(). Every other error passes unchanged.
    """
    guard = Guard(session)
    guard.acquire()
    try:
        with guard.stop, guard.ranks:
            try:
                yield guard
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                failure = failure_of(error, session, guard)
                if failure is None or failure is error:
                    raise
                raise failure from error
    finally:
        guard.lock.release()


def failure_of(error: BaseException, session: Session, guard: Guard) -> BaseException | None:
    """The failure in one line behind an error, which the other ranks are told; None for an error that needs
    its traceback."""
    found: BaseException | None = error if isinstance(error, (RunFailure, ConfigError)) else None
    found = exited(error, moment_of(session)) if isinstance(error, SystemExit) else found
    found = (
        found
        or out_of_memory(error, f"{moment_of(session)}, {place_of(error)}")
        or storage_error(error, session.output)
        or guard.ranks.cause(error)
    )
    # a stop is agreed on by all ranks, and a quiet failure is another rank's: neither is news to them
    if not isinstance(found, StoppedError) and not getattr(found, "quiet", False):
        guard.ranks.fail(" ".join(str(found or f"{type(error).__name__}: {error}").split()))
    return found
