"""The journal of a run: one JSON line per sample, appended as soon as the sample is finished, so that a
killed run can be resumed.

Every process writes its own files; reading merges them. An incomplete last line (of a killed process) is
ignored. A sample that occurs twice (two processes generated it) counts once: seeds depend only on the sample,
so both are the same; an entry without an error replaces one with an error.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vlrl.services.files import read_jsonl

Key = tuple[str, str, str, int]  # suite, variant, id, sample


@dataclass(frozen=True)
class Entry:
    """One sample. `error` says why there is no response (the sample then counts as wrong). `input` describes
    the model's input (`provenance`)."""

    suite: str
    id: str
    sample: int
    response: str
    variant: str = "plain"
    finish: str = "stop"
    tokens: int = 0
    seconds: float = 0.0
    error: str = ""
    confidence: float | None = None
    input: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return (self.suite, self.variant, self.id, self.sample)


class Journal:
    """An append-only journal in `folder`/journal. Safe for any number of processes and threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "journal"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / f"{time.time_ns():020d}-{os.uname().nodename}-{os.getpid()}.jsonl"
        self._lock = threading.Lock()
        self._stream: Any = None

    def add(self, entry: Entry) -> None:
        """Appends an entry and flushes it to the operating system, so that a killed process loses nothing
        that it added."""
        line = json.dumps(asdict(entry), ensure_ascii=False, separators=(",", ":"))
        with self._lock:
            if self._stream is None:
                self._stream = self.path.open("a", encoding="utf-8")
            self._stream.write(line + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Flushes to the disk and closes the file."""
        with self._lock:
            if self._stream is not None:
                os.fsync(self._stream.fileno())
                self._stream.close()
                self._stream = None

    def entries(self) -> dict[Key, Entry]:
        """The samples of all processes, each once."""
        return read_journal(self.folder)


def read_journal(folder: Path) -> dict[Key, Entry]:
    """The samples in a journal folder; entries without an error replace entries with one."""
    out: dict[Key, Entry] = {}
    for entry in _read_lines(folder):
        known = out.get(entry.key)
        if known is None or (known.error and not entry.error):
            out[entry.key] = entry
    return out


def _read_lines(folder: Path) -> Iterator[Entry]:
    names = set(Entry.__dataclass_fields__)
    for path in sorted(folder.glob("*.jsonl")):
        for value in read_jsonl(
            path, {"suite": str, "id": str, "sample": int, "response": str}
        ):  # a torn one is generated again
            yield Entry(**{key: item for key, item in value.items() if key in names})
