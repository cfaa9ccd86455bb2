"""Math-verify in processes of its own, with a hard wall per question: usable from any thread, healthy after any bomb, flat in memory.

Each worker is a clean interpreter (not a fork of this process, so threads and GPUs do not matter) that forks a child per question.
"""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from functools import lru_cache

SECONDS = 1.2
_START_SECONDS = 60.0
_CODE = "import sys, json; sys.path[:0] = json.loads(sys.argv[1]); from vlrl_rewards._math_worker import main; main()"


class Worker:
    """One interpreter with math-verify loaded."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = False

    def start(self) -> None:
        """Start it without waiting for it."""
        path = json.dumps([p for p in sys.path if p])
        self.ready = False
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CODE, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
        self.process = None

    def _line(self, seconds: float) -> bytes:
        assert self.process is not None and self.process.stdout is not None
        fd, line, deadline = self.process.stdout.fileno(), b"", time.monotonic() + seconds
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(fd, 4096) if ready else b""
            if not chunk:
                raise TimeoutError("the math worker does not answer")
            line += chunk
        return line

    def ask(self, gold: str, said: str, seconds: float) -> tuple[bool | None, str]:
        """One question. A worker that does not keep its time is replaced."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        assert self.process is not None and self.process.stdin is not None
        try:
            if not self.ready:
                self.ready = self._line(_START_SECONDS) == b"ready\n"
            self.process.stdin.write(json.dumps({"gold": gold, "said": said, "seconds": seconds}).encode() + b"\n")
            self.process.stdin.flush()
            reply = json.loads(self._line(seconds + 0.5))
        except (TimeoutError, BrokenPipeError):
            self.stop()
            self.start()
            return None, "out of time"
        return reply["equal"], reply["why"]


class Pool:
    """Workers for one process; the caller's thread waits for a free one."""

    def __init__(self, size: int) -> None:
        self.pid = os.getpid()
        self.idle: queue.LifoQueue[Worker] = queue.LifoQueue()
        for _ in range(size):
            worker = Worker()
            worker.start()
            self.idle.put(worker)

    def compare(self, gold: str, said: str, seconds: float = SECONDS) -> tuple[bool | None, str]:
        """(equal or None if that cannot be told, why)."""
        worker = self.idle.get()
        try:
            return worker.ask(gold, said, seconds)
        finally:
            self.idle.put(worker)


_lock = threading.Lock()
_pools: dict[int, Pool] = {}  # the pool of this process; a forked child must not write to its parent's pipes


def pool() -> Pool:
    """This process's pool (a forked child makes its own)."""
    with _lock:
        if os.getpid() not in _pools:
            _pools.clear()
            _pools[os.getpid()] = Pool(max(1, min(4, os.cpu_count() or 1)))
        return _pools[os.getpid()]


@lru_cache(maxsize=4096)
def compare(gold: str, said: str) -> tuple[bool | None, str]:
    """Ask math-verify whether two LaTeX strings are equal: (True, False or None for "cannot tell", why). At most SECONDS of computing."""
    return pool().compare(gold, said)


def warm() -> None:
    """Start the pool without waiting, so that the first question finds it ready."""
    pool()
