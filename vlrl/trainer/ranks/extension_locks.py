"""Locks of torch's extension cache, in which DeepSpeed compiles its optimizers.

torch creates the file `<cache>/<extension>/lock` while it compiles, keeps it open, and removes it at the end;
other processes wait, silently and without limit, until it is gone. A build that was killed leaves the file
behind. Here such a file is found, named and removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("vlrl")

# a lock that no process of this machine holds is stale once nothing in its folder has changed for so long
QUIET_SECONDS = 60.0
LOOK_EVERY = 5.0
WATCHED_SECONDS = 900.0  # extensions are compiled when the optimizer is made; nothing waits for them later


@dataclass(frozen=True)
class Lock:
    """A lock file: the extension, the processes of this machine that hold it open, and the seconds since its
    folder has changed."""

    path: Path
    holders: tuple[int, ...]
    idle: float

    @property
    def extension(self) -> str:
        """The name of the extension that is compiled."""
        return self.path.parent.name

    @property
    def is_stale(self) -> bool:
        """Whether the build that made it has ended: no process holds it, and nothing has changed for a minute
        (it may be another machine's)."""
        return not self.holders and self.idle >= QUIET_SECONDS


def cache_folder() -> Path:
    """torch's cache of compiled extensions."""
    named = os.environ.get("TORCH_EXTENSIONS_DIR")
    return (
        Path(named)
        if named
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"
    )


def locks(cache: Path | None = None) -> list[Lock]:
    """All locks of the cache, sorted by path."""
    folder = cache_folder() if cache is None else cache
    paths = sorted({*folder.glob("*/lock"), *folder.glob("*/*/lock")})
    holders = _holders(paths) if paths else {}
    return [Lock(path, holders.get(path, ()), _idle(path.parent)) for path in paths]


def remove_stale(cache: Path | None = None) -> list[Lock]:
    """Remove stale locks, each with one line in the log; returns the locks that are left."""
    left = []
    for lock in locks(cache):
        if lock.is_stale:
            lock.path.unlink(missing_ok=True)
            log.warning(
                "removed %s: a build of the extension %r was killed %.0f s ago and left it behind",
                lock.path,
                lock.extension,
                lock.idle,
            )
        else:
            left.append(lock)
    return left


def watch(
    cache: Path | None = None, seconds: float = WATCHED_SECONDS, look_every: float = LOOK_EVERY
) -> threading.Thread:
    """Remove stale locks now, and go on looking in a thread for `seconds`; a lock of a build that goes on is
    named once."""
    folder = cache_folder() if cache is None else cache
    told: set[Path] = set()

    def look() -> None:
        for lock in remove_stale(folder):
            if lock.path not in told:
                told.add(lock.path)
                who = (
                    f"process {lock.holders[0]}"
                    if lock.holders
                    else "no process of this machine; it counts as stale after a minute"
                )
                log.warning(
                    "the extension %r is being compiled: %s is held by %s", lock.extension, lock.path, who
                )

    def go_on() -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(look_every)
            look()

    look()
    thread = threading.Thread(target=go_on, daemon=True, name="extension-locks")
    thread.start()
    return thread


def _idle(folder: Path) -> float:
    return time.time() - max(map(_changed, (folder, *folder.iterdir())))


def _changed(path: Path) -> float:
    with contextlib.suppress(OSError):  # a compiler removes its files at any time
        return path.stat().st_mtime
    return 0.0


def _holders(paths: list[Path]) -> dict[Path, tuple[int, ...]]:
    """Processes that hold a path open; those of other users cannot be seen, nor any outside Linux."""
    wanted = {str(path.resolve()): path for path in paths}
    found: dict[Path, tuple[int, ...]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        for name in _opened(process) & wanted.keys():
            found[wanted[name]] = (*found.get(wanted[name], ()), int(process.name))
    return found


def _opened(process: Path) -> set[str]:
    """The files that a process holds open; none where it has ended or is another user's."""
    opened = set()
    with contextlib.suppress(OSError):
        for entry in (process / "fd").iterdir():
            with contextlib.suppress(
                OSError
            ):  # this one was closed meanwhile; a busy process always closes some
                opened.add(os.readlink(entry))
    return opened
