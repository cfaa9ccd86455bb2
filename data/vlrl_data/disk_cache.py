"""A bounded folder of files named by what they hold: downloads, converted tables, results of checks."""

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
    """Files under `folder`, the least recently used first out when they exceed `max_bytes`. Safe between processes: a file appears whole."""

    folder: Path
    max_bytes: int = 20 << 30

    def path(self, key: str, suffix: str = "") -> Path:
        """Where a key's file is, or would be."""
        return self.folder / key[:2] / f"{key}{suffix}"

    def get(self, key: str, write: Callable[[Path], None], suffix: str = "") -> Path:
        """The file of `key`; if it is not there, `write(path)` makes it. Errors of `write` leave nothing behind."""
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
        """Delete the least recently used files until the rest fits; returns how many went. `keep` stays."""
        files = [(file.stat(), file) for file in self.folder.glob("??/*") if file.is_file() and not file.name.startswith(".making-")]
        used = sum(stat.st_size for stat, _ in files)
        gone = 0
        for stat, file in sorted(files, key=lambda item: item[0].st_mtime_ns):
            if used <= self.max_bytes:
                break
            if file != keep:
                file.unlink(missing_ok=True)
                used -= stat.st_size
                gone += 1
        return gone


def default_cache() -> DiskCache:
    """The cache in the default folder; `$VLRL_CACHE_BYTES` bounds it (20 GiB if unset)."""
    return DiskCache(default_folder(), int(os.environ.get("VLRL_CACHE_BYTES") or 20 << 30))
