"""Rows that fail at run time: left out, written to `quarantine.jsonl` with file, line and reason, and
counted; too many of them end the run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlrl.plugins.registry import ConfigError
from vlrl.services.failures import BadRowsError, RunFailure, of_the_machine
from vlrl.services.files import append_jsonl, read_jsonl
from vlrl.trainer.ranks.collectives import gather
from vlrl.types import MediaError, Row, RowError

if TYPE_CHECKING:
    from accelerate import Accelerator

FILE = "quarantine.jsonl"
MIN_BAD = 10  # bad rows from which on their share counts


class BadRows:
    """The rows that this rank drew and could not use. Shared by the thread that collects ahead.

    Attributes:
        drawn: Rows drawn so far.
        bad: Those that could not be used; a row that is drawn again counts again.
    """

    def __init__(self) -> None:
        self.drawn = self.bad = 0
        self._known: set[str] = set()
        self._unwritten: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def draw(self) -> None:
        """Count a row as drawn."""
        self.drawn += 1

    def add(self, row: Row, reason: str, limit: float, warn: Callable[[str], None]) -> None:
        """Count a row, and report it the first time. Raises BadRowsError once more than the share `limit` of
        all
        drawn rows (at least 10) are bad."""
        place = f" ({row.origin})" if row.origin else ""
        with self._lock:
            self.bad += 1
            new = row.id not in self._known
            self._known.add(row.id)
            if new:
                line = {"source": "run", "index": -1, "location": row.origin, "reason": reason, "id": row.id}
                self._unwritten.append(line)
        if new:
            warn(f"row {row.id!r}{place} was left out: {reason}")
        if self.bad >= MIN_BAD and self.bad > limit * self.drawn:
            raise BadRowsError(
                f"{self.bad} of {self.drawn} rows could not be used, over the share that row_error_limit "
                f"allows ({limit:g}); the last: row {row.id!r}{place}: {reason}. See {FILE}; mend the "
                "rows, or "
                "raise row_error_limit"
            )

    def write(self, accelerator: Accelerator, folder: Path) -> None:
        """Append the new bad rows of all ranks to the quarantine file of the run's folder. All ranks call
        it."""
        lines = [line for (part,) in gather(accelerator, [self.take()]) for line in part]
        if accelerator.is_main_process:
            append(folder, lines)

    def take(self) -> list[dict[str, Any]]:
        """The lines that are not written yet; they are handed over."""
        with self._lock:
            lines, self._unwritten = self._unwritten, []
        return lines

    def state_dict(self) -> dict[str, int]:
        """The counts."""
        return {"drawn": self.drawn, "bad": self.bad}

    @property
    def reported(self) -> list[str]:
        """The ids of the rows that this rank warned of: none is warned of twice, also after a restart."""
        return sorted(self._known)

    def load_state_dict(self, state: Mapping[str, int], reported: Iterable[str] = ()) -> None:
        """Undo `state_dict` and `reported`."""
        self.drawn, self.bad = int(state.get("drawn", 0)), int(state.get("bad", 0))
        self._known = set(reported)


def append(folder: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Append lines to the quarantine file of a run's folder, each row once over the whole run."""
    if not lines:
        return
    path = folder / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    written = read_jsonl(path, {"source": str, "reason": str})
    there = {row.get("id") for row in written if row["source"] == "run"}
    for line in lines:
        if line["id"] not in there:
            there.add(line["id"])
            append_jsonl(path, line)


def reason_of(error: Exception) -> str:
    """Why a row cannot be used, from what it made the template, the tokenizer or a decoder raise. Raises the
    error where the row is not at fault."""
    if isinstance(error, RunFailure) or of_the_machine(error):
        raise error
    said = str(error).strip() or "no message"
    return (
        said if isinstance(error, (RowError, MediaError, ConfigError)) else f"{type(error).__name__}: {said}"
    )
