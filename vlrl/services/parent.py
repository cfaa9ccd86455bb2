"""Processes that end with the process that began them."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from typing import Any


def end_with_parent() -> None:
    """A pool's initializer: the worker ends when its parent does, also when the parent is killed (the worker
    would wait for ever otherwise)."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def signal_at_parents_death(number: int) -> None:
    """Have the kernel send this process a signal when its parent ends, also when the parent is killed. Linux
    alone; called in the process itself, perhaps between fork and exec."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it ended in between
        os.kill(os.getpid(), number)


def end_with_launcher() -> None:
    """Between fork and exec of a launcher of ranks: it is killed with this process. Its ranks, which ask for
    SIGTERM (`signal_at_parents_death`), then stop with a checkpoint."""
    signal_at_parents_death(signal.SIGKILL)
