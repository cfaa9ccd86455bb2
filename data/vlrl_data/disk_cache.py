"""A bounded folder of files named by a digest of their content's origin: downloads and converted tables."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def default_folder() -> Path:
    """`$VLRL_CACHE`, else `vlrl` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("VLRL_CACHE") or Path(home) / "vlrl")


@dataclass(frozen=True)
class DiskCache:
    """Files under `folder`; above `max_bytes` the least recently used are deleted. Safe between processes: a file appears whole or not at all."""

    folder: Path
    max_bytes: int = 20 << 30

    def path(self, key: str, suffix: str = "") -> Path:
        """The path of a key's file, whether or not it exists."""
        return self.folder / key[:2] / f"{key}{suffix}"

    def get(self, key: str, write: Callable[[Path], None], suffix: str = "") -> Path:
        """The file of `key`; if it does not exist, `write(path)` makes it. An error of `write` leaves no file."""
        target = self.path(key, suffix)
        if target.exists():
            os.utime(target)
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".making-", suffix=suffix)
        os.close(handle)
        try:
            write(Path(name))
            os.replace(name, target)
        finally:
            Path(name).unlink(missing_ok=True)
        self.trim(keep=target)
        return target

    def trim(self, keep: Path | None = None) -> int:
        """Delete the least recently used files until the others fit, except `keep`; returns how many were deleted."""
        files = [(file.stat(), file) for file in self.folder.glob("??/*") if file.is_file() and not file.name.startswith(".making-")]
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
