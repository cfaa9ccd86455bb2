"""A bounded folder of files named by a digest of their content's origin: downloads, converted tables, indexes
of archives."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

EXHAUSTED = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EROFS,
)  # faults of the machine, of no row
TRIM_SHARE = 32  # the folder is looked through once 1/32 of the bound was written
_WRITTEN: dict[Path, int] = {}  # folder -> bytes that this process wrote since it last looked through it


def default_folder() -> Path:
    """`$VLRL_CACHE`, else `vlrl` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("VLRL_CACHE") or Path(home) / "vlrl")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """A lock among the processes and threads of a machine, through a file that is gone afterwards. Nothing is
    locked where there is no `fcntl`.

    A waiter may get the lock of a file that the holder has just removed while another process makes a new
    one: work is then done twice, never wrong.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class DiskCache:
    """Files under `folder`; above `max_bytes` the least recently used are deleted. Safe between processes: a
    file appears whole or not at all.

    Of processes that ask for the same file at once, one makes it and the others wait.
    """

    folder: Path
    max_bytes: int = 20 << 30

    def path(self, key: str, suffix: str = "") -> Path:
        """The path of a key's file, whether or not it exists."""
        return self.folder / key[:2] / f"{key}{suffix}"

    def get(self, key: str, write: Callable[[Path], None], suffix: str = "") -> Path:
        """The file of `key`; if it does not exist, `write(path)` makes it. An error of `write` leaves no
        file."""
        target = self.path(key, suffix)
        try:
            os.utime(target)
            return target
        except PermissionError:  # a cache of another user that may be read
            return target
        except FileNotFoundError:
            target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent / f".lock-{key}"):
            if target.exists():
                return target
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=".making-", suffix=suffix)
            os.close(handle)
            try:
                write(Path(name))
                size = os.path.getsize(name)
                os.replace(name, target)
            finally:
                Path(name).unlink(missing_ok=True)
        written = _WRITTEN.get(self.folder, self.max_bytes) + size
        _WRITTEN[self.folder] = 0 if written * TRIM_SHARE >= self.max_bytes else written
        if not _WRITTEN[self.folder]:
            self.trim(keep=target)
        return target

    def trim(self, keep: Path | None = None) -> int:
        """Delete the least recently used files until the others fit, except `keep`; returns how many were
        deleted."""
        files = []
        for file in self.folder.glob("??/*"):
            try:
                if not file.name.startswith(".") and file.is_file():
                    files.append((file.stat(), file))
            except FileNotFoundError:  # deleted by another process
                continue
        used = sum(stat.st_size for stat, _ in files)
        deleted = 0
        for stat, file in sorted(files, key=lambda item: item[0].st_mtime_ns):
            if used <= self.max_bytes:
                break
            if file != keep:
                file.unlink(missing_ok=True)
                used -= stat.st_size
                deleted += 1
        return deleted


def default_cache() -> DiskCache:
    """The cache in the default folder; `$VLRL_CACHE_BYTES` bounds it (20 GiB if unset)."""
    return DiskCache(default_folder(), int(os.environ.get("VLRL_CACHE_BYTES") or 20 << 30))
