"""Worker processes that end with the process that began them."""

from __future__ import annotations

import multiprocessing
import os
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
