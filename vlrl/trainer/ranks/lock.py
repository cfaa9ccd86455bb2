"""One run per output folder: `<output>/run.lock` is locked while a process writes there, and names it."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from vlrl.services.failures import LockedError
from vlrl.services.lazy import filelock

NAME = "run.lock"
PATIENCE = 1.0  # seconds: a killed process is still being taken down by the kernel


class RunLock:
    """The lock of a run's folder (flock, which the kernel gives up when the process dies).

    Of two machines on NFS it refuses the second where the mount passes locks to the server, which is Linux'
    default; `nolock` and `local_lock` mounts exclude the processes of one machine alone. On a file system
    without flock it is filelock's file with pid and host, which is taken over once that pid is dead.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        # released by whichever thread ends the run
        self._lock = filelock.FileLock(self.path, thread_local=False)

    def acquire(self) -> None:
        """Take the lock. Raises LockedError, naming the owner, where another process holds it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=PATIENCE)
        except filelock.Timeout:
            raise LockedError(
                f"output: {str(self.path.parent)!r} is in use by {owner(self.path)}; wait for its end, "
                "stop it, or give another `output=`"
            ) from None
        except OSError as error:
            raise LockedError(
                f"output: {str(self.path)!r} cannot be locked ({error}); give an `output=` on another "
                "file system"
            ) from None
        if not isinstance(self._lock, filelock.SoftFileLock):  # its file is the lock
            started = time.strftime("%Y-%m-%d %H:%M:%S %z")
            said = f"pid {os.getpid()} on {socket.gethostname()} (started {started})\n"
            self.path.write_text(said, encoding="utf-8")

    def release(self) -> None:
        """Give the lock up, if it is this process's."""
        if not self._lock.is_locked:
            return
        if not isinstance(self._lock, filelock.SoftFileLock):
            # before the release: after it the file may be another process's
            self.path.unlink(missing_ok=True)
        self._lock.release()


def owner(path: Path) -> str:
    """The process that a lock's file names."""
    try:
        return " ".join(path.read_text(encoding="utf-8", errors="replace").split()) or "another process"
    except OSError:
        return "another process"
