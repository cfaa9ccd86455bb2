"""A pool of math-verify worker processes with a hard time limit per question. It is safe to call from any
thread.

Each worker is a new interpreter (not a fork of this process, so threads and GPUs do not matter) that forks a
child per question: an answer made to exhaust time or memory ends only its child.
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

from vlrl_rewards.math.units import registry

CPU_SECONDS = 0.8
SECONDS = 1.4
_GRACE = 0.2
_START_SECONDS = 120.0
_waits = threading.local()  # seconds that each thread has waited for workers to start
_CODE = (
    "import sys, json; sys.path[:0] = json.loads(sys.argv[1]); from vlrl_rewards.math.worker import main; "
    "main()"
)


class MathWorker:
    """One interpreter with math-verify loaded."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = False
        self.buffer = b""
        self.asked = 0

    def start(self) -> None:
        """Start the process without waiting for it."""
        path = json.dumps([p for p in sys.path if p])
        self.ready, self.buffer = False, b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CODE, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self) -> None:
        """Kill the process and close its pipes."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
        self.process = None

    def _line(self, seconds: float) -> bytes:
        assert self.process is not None and self.process.stdout is not None
        fd, deadline = self.process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the math worker is late")
            chunk = os.read(fd, 4096)
            if not chunk:
                raise BrokenPipeError("the math worker is gone")
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def wait_ready(self) -> None:
        """Wait until the process is ready. Raises RuntimeError if it does not start: a broken verifier must
        not look like a wrong answer."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        if self.ready:
            return
        begun = time.perf_counter()
        try:
            self.ready = self._line(_START_SECONDS) == b"ready"
            _waits.seconds = waited() + time.perf_counter() - begun
        except (TimeoutError, BrokenPipeError) as error:
            self.stop()
            raise RuntimeError(
                f"math-verify does not start in its worker process ({error}); try `python -c 'import "
                "math_verify'`"
            ) from None

    def ask(self, gold: str, said: str, seconds: float) -> tuple[bool | None, str]:
        """(equal or None, why) for one question. A late worker finishes by itself (it has its own limits),
        and its reply is discarded."""
        self.wait_ready()
        assert self.process is not None and self.process.stdin is not None
        self.asked += 1
        request = {"id": self.asked, "gold": gold, "said": said, "cpu": CPU_SECONDS, "seconds": seconds}
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            while True:
                reply = json.loads(self._line(seconds + _GRACE))
                if reply["id"] == self.asked:
                    return reply["equal"], reply["why"]
        except TimeoutError:
            return None, "out of time"
        except BrokenPipeError:
            self.stop()
            self.start()
            return None, "the worker died"


class Pool:
    """The workers of one process: one from the start, more when questions wait, `size` at most. The caller
    waits for a free one."""

    def __init__(self, size: int) -> None:
        self.idle: queue.LifoQueue[MathWorker] = queue.LifoQueue()
        self.room = size - 1
        self.lock = threading.Lock()
        self.starting = threading.Lock()
        self.started = False
        first = MathWorker()
        first.start()
        self.idle.put(first)

    def compare(self, gold: str, said: str, seconds: float = SECONDS) -> tuple[bool | None, str]:
        """(equal, or None if that cannot be determined; why)."""
        worker = self._worker()
        try:
            return worker.ask(gold, said, seconds)
        finally:
            self.idle.put(worker)

    def _worker(self) -> MathWorker:
        try:
            return self.idle.get_nowait()
        except queue.Empty:
            with self.lock:
                if self.room > 0:
                    self.room -= 1
                    return MathWorker()
            return self.idle.get()

    def wait_ready(self) -> None:
        """Wait until one worker has started; other threads wait for the same worker and start none."""
        with self.starting:
            if self.started:
                return
            worker = self._worker()
            try:
                worker.wait_ready()
                self.started = True
            finally:
                self.idle.put(worker)


_lock = threading.Lock()
_pools: dict[int, Pool] = {}  # the pool of this process; a forked child must not write to its parent's pipes


def pool() -> Pool:
    """The pool of this process; a forked child creates its own."""
    with _lock:
        if os.getpid() not in _pools:
            _pools.clear()
            _pools[os.getpid()] = Pool(max(1, min(4, os.cpu_count() or 1)))
        return _pools[os.getpid()]


@lru_cache(maxsize=4096)
def compare(gold: str, said: str) -> tuple[bool | None, str]:
    """(equal, why) for two LaTeX strings by math-verify; None where it cannot decide. Takes at most
    SECONDS."""
    return pool().compare(gold, said)


def waited() -> float:
    """Seconds that this thread has waited for workers to start, which are no part of judging an answer."""
    return getattr(_waits, "seconds", 0.0)


def warm(wait: bool = False) -> None:
    """Start the pool before the first question. `wait`: return only when it is ready."""
    mine = pool()
    if wait:
        registry()  # the table of units, which takes about a second to load
        if not mine.started:
            mine.wait_ready()
