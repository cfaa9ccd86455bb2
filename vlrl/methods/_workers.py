"""Worker processes that do not stay behind."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """As a pool's initializer: the worker ends when its parent does, also one that is killed, whose workers would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
