"""A reaper of processes and temporary folders: whatever ends this process, those that it registered are ended
and removed.

One small process per run reads what is registered from a pipe. The pipe closes when this process is gone,
also by SIGKILL; then the reaper kills the process groups that are left (after a look at their start time,
because numbers are used again) and removes the folders. At a normal exit nothing is left for it. Run as a
script it is the reaper.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PREFIX = "vlrl-episode-"


def start_time(pid: int) -> str:
    """When a process started, in clock ticks since boot; "" where it is gone or the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""


def end_group(pid: int, born: str = "") -> None:
    """Kill the process group of `pid`, unless another process has its number since."""
    if born and start_time(pid) not in (born, ""):
        return
    with contextlib.suppress(OSError):  # gone
        os.killpg(pid, signal.SIGKILL)


class Reaper:
    """What this process has started and made. Safe to call from several threads; after a fork the child
    begins with an empty one."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.owner = os.getpid()
        self.processes: dict[int, tuple[subprocess.Popen, str]] = {}
        self.watched: dict[int, str] = {}
        self.folders: set[str] = set()
        self.helper: subprocess.Popen | None = None

    def spawn(self, command: Sequence[str], **options: Any) -> subprocess.Popen:
        """`subprocess.Popen(command, **options)` in a session of its own, registered. End it with `end`."""
        with self.lock:
            process = subprocess.Popen(list(command), start_new_session=True, **options)
            self.adopt(process)
        return process

    def adopt(self, process: subprocess.Popen) -> None:
        """Register a process that leads its own group."""
        with self.lock:
            born = start_time(process.pid)
            self.processes[process.pid] = (process, born)
            self._tell(f"+p {process.pid} {born}")

    def end(self, process: subprocess.Popen) -> None:
        """Kill a process with its whole group, wait for it, close its pipes. A second call does nothing."""
        with self.lock:
            known = self.processes.pop(process.pid, None)
        if known is not None:
            end_group(process.pid, known[1])  # its children keep the group's number after its end
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
            self._tell(f"-p {process.pid}")
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def watch(self, pid: int) -> None:
        """Register the leader of a process group that another library started and waits for. End it with
        `end_watched`."""
        with self.lock:
            self.watched[pid] = start_time(pid)
            self._tell(f"+p {pid} {self.watched[pid]}")

    def end_watched(self, pid: int) -> None:
        """Kill the group of a watched process. A second call does nothing."""
        with self.lock:
            born = self.watched.pop(pid, None)
            if born is not None:
                end_group(pid, born)
                self._tell(f"-p {pid}")

    def folder(self) -> Path:
        """A new temporary folder, registered. Remove it with `remove`."""
        path = f"{tempfile.gettempdir()}/{PREFIX}{secrets.token_hex(8)}"
        with (
            self.lock
        ):  # told before it is there: many threads wait here, and the process may be killed meanwhile
            self.folders.add(path)
            self._tell(f"+f {path}")
        os.mkdir(path, 0o700)
        return Path(path)

    def remove(self, folder: Path) -> None:
        """Remove a folder of `folder` with everything in it. A second call does nothing."""
        with self.lock:
            known = str(folder) in self.folders
            self.folders.discard(str(folder))
        if known:
            shutil.rmtree(folder, ignore_errors=True)
            self._tell(f"-f {folder}")

    def end_all(self) -> None:
        """End and remove everything that is registered. Called at exit; in a forked child it does nothing."""
        if os.getpid() != self.owner:
            return
        for process, _ in list(self.processes.values()):
            self.end(process)
        for pid in list(self.watched):
            self.end_watched(pid)
        for folder in list(self.folders):
            self.remove(Path(folder))
        with self.lock:
            helper, self.helper = self.helper, None
        if helper is not None and helper.stdin is not None:
            helper.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                helper.wait(5.0)

    def _tell(self, line: str) -> None:
        """A line for the helper process, which is started by the first one. A helper that was killed is not
        replaced: `end_all` still acts."""
        with self.lock:
            if self.helper is None:
                command = [sys.executable, "-S", "-E", __file__]
                self.helper = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, cwd="/"
                )
            assert self.helper.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self.helper.stdin.write(line.encode() + b"\n")
                self.helper.stdin.flush()


REAPER = Reaper()
atexit.register(REAPER.end_all)


def _forget() -> None:
    """In a forked child: nothing is its own."""
    REAPER.__init__()  # type: ignore[misc]  # the same object, because modules hold it


os.register_at_fork(after_in_child=_forget)


def reap(lines: Any) -> None:
    """Read what is registered until the pipe closes, then end what is left."""
    processes: dict[int, str] = {}
    folders: set[str] = set()
    for raw in lines:
        kind, _, rest = raw.decode().rstrip("\n").partition(" ")
        if kind == "+p":
            pid, _, born = rest.partition(" ")
            processes[int(pid)] = born
        elif kind == "-p":
            processes.pop(int(rest), None)
        elif kind == "+f":
            folders.add(rest)
        else:
            folders.discard(rest)
    for pid, born in processes.items():
        end_group(pid, born)
    mine = [folder for folder in folders if os.path.basename(folder).startswith(PREFIX)]
    for _ in range(3):  # a process that dies may still write, and a thread of the run still make one
        for folder in mine:
            shutil.rmtree(folder, ignore_errors=True)
        if not any(map(os.path.isdir, mine)):
            break
        time.sleep(0.2)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    reap(sys.stdin.buffer)
