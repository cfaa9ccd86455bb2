"""One run per output folder: `<output>/run.lock` names the process that writes there, and is touched while
that process lives."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from vlrl.services.failures import LockedError

log = logging.getLogger("vlrl")

NAME = "run.lock"
_HALF_WRITTEN = 5.0  # seconds in which another process may still be writing its lock


class RunLock:
    """The lock of a run's folder.

    A lock is stale where its process is known to be dead (same machine, no such pid, or the pid is another
    process now), or, on another machine, where it was not touched for `stale_after` seconds by the clock of
    the file system. A living process on the same machine keeps its lock, however busy or stopped it is. The
    file is created with O_EXCL, which is atomic on NFS (version 3 and later) too.
    """

    def __init__(self, folder: Path, stale_after: float = 300.0) -> None:
        self.path, self.stale_after = folder / NAME, stale_after
        self.token = uuid.uuid4().hex
        self.held = False
        self.taken_by = ""  # another process took the lock over while this one was silent
        self._end = threading.Event()

    def acquire(self) -> None:
        """Take the lock. Raises LockedError, naming the owner, where another process holds it."""
        me = json.dumps(identity() | {"token": self.token}) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(100):
            try:
                handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                self._remove_stale()
                continue
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(me)
            break
        else:
            raise LockedError(
                f"output: the lock {str(self.path)!r} could not be taken; another process takes it again "
                "and again"
            )
        self.held = True
        threading.Thread(target=self._beat, name="run-lock", daemon=True).start()

    def check(self) -> None:
        """Raise LockedError if another process has taken this lock over: both would write the same files."""
        if self.taken_by:
            raise LockedError(
                f"output: {self.taken_by} has taken over {str(self.path.parent)!r}, because this process "
                "was silent for more than watch.lock_stale "
                f"({self.stale_after:g} s); this run stops without writing more. Raise watch.lock_stale if "
                "the machine pauses processes for longer"
            )

    def release(self) -> None:
        """Remove the lock, if it is still this process's."""
        self._end.set()
        if self.held and owner(self.path).get("token") == self.token:
            self.path.unlink(missing_ok=True)
        self.held = False

    def _beat(self) -> None:
        while not self._end.wait(max(0.2, min(self.stale_after / 10, 30.0))):
            found = owner(self.path)
            if found.get("token") not in (None, self.token):
                self.taken_by = describe(found)
                return
            try:
                os.utime(self.path)
            except OSError as error:  # the file system is gone for the moment
                log.debug("%s: %s", self.path, error)

    def _remove_stale(self) -> None:
        """Move a stale lock out of the way. Raises LockedError for one that is in use."""
        found = owner(self.path)
        silent = self._silent_for()
        if not found and silent < _HALF_WRITTEN:
            time.sleep(0.1)
            return
        reason = self._stale(found, silent)
        if not reason:
            raise LockedError(
                f"output: {str(self.path.parent)!r} is in use by {describe(found)}; wait for its end, stop "
                "it, or give another `output=` "
                f"(if it is surely gone, delete {str(self.path)!r})"
            )
        aside = self.path.with_name(f"{NAME}.{self.token}")
        try:
            os.rename(self.path, aside)
        except FileNotFoundError:
            return  # another process was faster
        moved = owner(aside)
        if moved.get("token") != found.get("token"):  # the lock of a process that was faster: put it back
            os.link(aside, self.path)
            aside.unlink()
            return
        aside.unlink()
        log.warning("output: took over %r from %s: %s", str(self.path.parent), describe(found), reason)

    def _stale(self, found: dict[str, Any], silent: float) -> str:
        """Why a lock is stale; "" for one in use."""
        me = identity()
        if found and all(found.get(key) == me[key] for key in ("host", "boot", "namespace")):
            born = birth(int(found.get("pid", 0)))
            return "" if born is not None and born == found.get("birth") else "that process is dead"
        return (
            f"it has been silent for {silent:.0f} s (watch.lock_stale is {self.stale_after:g})"
            if silent > self.stale_after
            else ""
        )

    def _silent_for(self) -> float:
        """Seconds since the lock was touched, by the clock of the file system that holds it."""
        probe = self.path.with_name(f"{NAME}.{self.token}.now")
        try:
            probe.write_bytes(b"")
            now = probe.stat().st_mtime
            return now - self.path.stat().st_mtime
        except FileNotFoundError:
            return 0.0
        finally:
            probe.unlink(missing_ok=True)


def identity() -> dict[str, Any]:
    """This process among all on all machines: host, boot of the machine, namespace of process ids, pid,
    birth, and the time for people."""
    return {
        "host": socket.gethostname(),
        "boot": _read("/proc/sys/kernel/random/boot_id"),
        "namespace": _link("/proc/self/ns/pid"),
        "pid": os.getpid(),
        "birth": birth(os.getpid()),
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def birth(pid: int) -> str | None:
    """When a process of this machine was born, in clock ticks since boot; None for one that is dead (or a
    zombie); "" where /proc does not say."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except (PermissionError, OverflowError):
        pass
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (None if fields[0] in "ZX" else fields[19]) if len(fields) > 19 else ""


def owner(path: Path) -> dict[str, Any]:
    """What a lock says about its owner; {} for a missing or half-written lock."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def describe(found: dict[str, Any]) -> str:
    """An owner in words: host, pid, start."""
    if not found:
        return "a process that left no name"
    return f"pid {found.get('pid')} on {found.get('host')} (started {found.get('started')})"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
