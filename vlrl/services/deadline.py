"""A deadline on code of the user's that may never return."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from vlrl.services.failures import is_users

_SIGNAL = signal.SIGVTALRM  # libraries use SIGALRM for time limits of their own


class OverdueError(BaseException):
    """The deadline is over; the text is the line of the user's that was running. No Exception: code that
    catches those would go on."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise OverdueError in the code inside after `seconds` of wall-clock time, once a second until it ends.

    Python code, sleeps and waiting for files and sockets are interrupted. Outside the main thread, where no
    signal is handled, there is no deadline.
    """
    main = threading.main_thread()
    if threading.current_thread() is not main:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        wait = seconds
        while not over.wait(wait):
            signal.pthread_kill(main.ident or 0, _SIGNAL)
            wait = 1.0

    def interrupt(_number: int, frame: FrameType | None) -> None:
        if over.is_set():
            return
        while frame is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        raise OverdueError(f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "")

    before = signal.signal(_SIGNAL, interrupt)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        signal.signal(_SIGNAL, before)
