"""`--overwrite`: the old run is moved aside when the new one starts, and deleted after the new run's first
checkpoint."""

from __future__ import annotations

import fnmatch
import logging
import shutil
import time
from pathlib import Path

from vlrl.config.trackers import TRACKERS
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.checkpoints.files import folders
from vlrl.trainer.ranks import lock
from vlrl.trainer.ranks.stopping import STOP_FILE

log = logging.getLogger("vlrl")

_MARK = ".replaced-by-vlrl"  # in the folder of an old run that was moved aside
# what a run (or `vlrl compare`, `vlrl report`, `vlrl eval`) writes into its folder
_OURS = (
    "config.yaml", "base.yaml", "launch.yaml", "metrics.jsonl", "timings.jsonl", "events.jsonl",
    "sessions.jsonl", "quarantine.jsonl",
    "trajectories.jsonl", "judge", "summary.json", "partial_summary.json", "partial_summary.part",
    "cell.json", "cold.json", "report.html",
    "rollouts", "checkpoints", "eval", *TRACKERS, "trackers.json", ".write-*", ".quarantine-*", ".*.part",
    "*.part", _MARK, lock.NAME,
    lock.NAME + ".*", STOP_FILE,
)  # fmt: skip
_STARTED = time.time()


def check(folder: Path) -> None:
    """Raise ConfigError for a folder that holds anything that no run wrote. An empty or missing folder is
    fine, one with our quarantine file too."""
    if not folder.exists():
        return
    if not folder.is_dir() or folder.is_symlink():
        raise ConfigError(
            f"output: {str(folder)!r} is no folder of a run, so it is not overwritten; give another `output=`"
        )
    foreign = sorted(
        path.name for path in folder.iterdir() if not any(fnmatch.fnmatch(path.name, ours) for ours in _OURS)
    )
    is_run = any((folder / name).exists() for name in ("metrics.jsonl", "sessions.jsonl", "checkpoints"))
    of_a_start = (
        "*quarantine*",
        "launch.yaml",
        lock.NAME + "*",
    )  # what a start leaves that failed before it trained
    only_failed = all(
        any(fnmatch.fnmatch(path.name, name) for name in of_a_start) for path in folder.iterdir()
    )
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise ConfigError(
            f"output: {str(folder)!r} holds {', '.join(foreign[:3])}{more}, which no run wrote, so it is "
            "not overwritten; "
            "move them away, or give another `output=`"
        )
    if not is_run and not only_failed:
        raise ConfigError(
            f"output: {str(folder)!r} is not the folder of a run, so it is not overwritten; give another "
            "`output=`"
        )


def set_aside(folder: Path) -> None:
    """Move the old run to `<folder>.previous`, where it stays until `discard`. The quarantine file of the new
    run stays."""
    check(folder)
    aside = previous(folder)
    if not folder.exists():
        return
    if (aside / _MARK).is_file() and not folders(folder):
        stale = [
            path for path in folder.iterdir() if not _is_new(path)
        ]  # a new run that failed before its first checkpoint: the old one is kept
        for path in stale:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return
    if aside.exists():
        if not (aside / _MARK).is_file():
            raise ConfigError(
                f"output: the old run would be moved to {str(aside)!r}, which exists; move it away, or "
                "give another `output=`"
            )
        shutil.rmtree(aside)
    old = [path for path in folder.iterdir() if not _is_new(path)]
    if old:
        aside.mkdir()
        (aside / _MARK).write_text(
            "vlrl moved this run aside for another; it is deleted after the other's first checkpoint\n",
            encoding="utf-8",
        )
        for path in old:
            path.replace(aside / path.name)
        log.warning("output: the old run is in %s until the new one has a checkpoint", aside)


def discard(folder: Path) -> None:
    """Delete the run that was moved aside for this one; nothing where none was."""
    aside = previous(folder)
    if (aside / _MARK).is_file():
        shutil.rmtree(aside)


def previous(folder: Path) -> Path:
    """Where the old run of a folder is moved."""
    return folder.with_name(folder.name + ".previous")


def _is_new(path: Path) -> bool:
    """Whether this process has written a file before the run was moved aside: its lock, the quarantine of its
    own rows, or its launch file."""
    return path.name.startswith(lock.NAME) or (
        path.name in ("quarantine.jsonl", "launch.yaml") and path.stat().st_mtime >= _STARTED
    )
