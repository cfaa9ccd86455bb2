"""The record of a run: metrics, timings, events and rollouts in its folder, and on request in a live view and
in trackers.

`metrics.jsonl` holds nothing that depends on the clock, so the same seed gives the same file; a resumed run
first cuts it back to its checkpoint's step, so that a run that was killed ends with the same file as one that
was not. Times go to `timings.jsonl`.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vlrl.logging.live import LiveView
from vlrl.logging.pictures import Pictures, thumbnail
from vlrl.logging.rollouts import Decode, Record, records, write
from vlrl.logging.session import describe_session
from vlrl.logging.tracker_libraries import open_trackers
from vlrl.logging.trackers import PICTURE_SIDE, RolloutTable, rollout_table
from vlrl.services.files import TRAJECTORIES, append_jsonl, parse_jsonl, read_jsonl, write_whole
from vlrl.services.redaction import blank_all
from vlrl.trainer.step.observer import RunObserver
from vlrl.types import Group

log = logging.getLogger("vlrl")

METRICS, TIMINGS, EVENTS, SESSIONS = "metrics.jsonl", "timings.jsonl", "events.jsonl", "sessions.jsonl"
KEYS: dict[str, dict[str, type]] = {  # what every line of a file has
    METRICS: {"step": int, "phase": str},
    TIMINGS: {"step": int, "phase": str, "seconds": dict},
    EVENTS: {"step": int, "kind": str},
    TRAJECTORIES: {"step": int, "row": str, "steps": list},
    SESSIONS: {
        **{"time": float, "command": list, "packages": dict, "devices": list, "vlrl": str, "python": str},
        **{"revision": object, "cores": object},  # may be null
    },
}
_PENDING = 2  # rollout files being written while training goes on


class Recorder(RunObserver):
    """Writes a run folder. Steps must increase over the whole run, phases included.

    `live` shows the view of `vlrl.logging.live`; `trackers` are names of `vlrl.config.trackers`, which get
    `tracker_rollouts` rollouts of a step. `decode` (ids -> text) lets the report colour single tokens. With
    `main=False` (other ranks) nothing is written.
    """

    def __init__(
        self,
        folder: str | Path,
        run_config: Mapping[str, Any],
        live: bool = False,
        trackers: Sequence[str] = (),
        decode: Decode | None = None,
        main: bool = True,
        tracker_rollouts: int = 8,
    ) -> None:
        self.folder, self.main, self.decode = Path(folder), main, decode
        watch = run_config.get("watch") or {}
        self.rollouts_every = int(watch.get("rollouts_every", 1))
        self.tracker_rollouts = tracker_rollouts
        self._last = -1
        self.events = 0  # lines of events.jsonl
        self._now: dict[str, Any] = {}
        self._pictures = Pictures()
        self._writing: list[Future[None]] = []
        if not main:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._last = max((row["step"] for row in read_record(self.folder, METRICS)), default=-1)
        self.events = len(read_record(self.folder, EVENTS))
        self._worker = ThreadPoolExecutor(1, "rollouts")
        self._trackers = open_trackers(trackers, self.folder, run_config)
        self._view = LiveView(run_config) if live else None
        append_jsonl(self.folder / SESSIONS, describe_session())

    def rewind(self, step: int, events: int | None = None, ahead: int = 0) -> None:
        """Delete all records after `step`, the last step of the checkpoint (-1: all records), and all events
        but the first `events`.

        Episodes of the next `ahead` steps stay: the checkpoint holds what was collected for them.

        The checkpoint knows how many there were: events of its own step that came after it (held-out scores,
        warnings) will come again.
        """
        if not self.main:
            return
        self.flush()
        for name, last, count in (
            (METRICS, step, None),
            (TIMINGS, step, None),
            (TRAJECTORIES, step + ahead, None),
            (EVENTS, step, events),
        ):
            _cut(self.folder / name, last, count)
        self.events = len(read_record(self.folder, EVENTS))
        for path in (
            *self.folder.glob(".*.part"),
            *self.folder.glob("rollouts/.*.part"),
        ):  # of a process that died while writing
            path.unlink()
        for path in (self.folder / "rollouts").glob("step-*.parquet"):
            if int(re.findall(r"\d+", path.stem)[0]) > step:
                path.unlink()
        self._last = step

    def step(
        self,
        step: int,
        phase: str,
        metrics: Mapping[str, float],
        timings: Mapping[str, float],
        groups: Sequence[Group] = (),
    ) -> None:
        """Record one step. `timings` are seconds by part; rollouts are written in the background every
        `watch.rollouts_every` steps (0: never)."""
        if not self.main:
            return
        if step <= self._last:
            raise ValueError(
                f"step {step} is already in {self.folder / METRICS} (last: {self._last}); resume the run, "
                "or give another `output`"
            )
        self._begin_trackers()
        self._last, self._now = step, {"step": step, "phase": phase}
        plain = {name: _number(value) for name, value in sorted(metrics.items())}
        seconds = {name: round(float(value), 6) for name, value in timings.items()}
        append_jsonl(self.folder / METRICS, {**self._now, **plain})
        append_jsonl(self.folder / TIMINGS, {**self._now, "seconds": seconds, "time": round(time.time(), 3)})
        rows: list[Record] = []
        if groups and self.rollouts_every and step % self.rollouts_every == 0:
            rows = records(step, phase, groups, self.decode)
            self._write(step, rows)
        self._track({"step": step, **plain}, seconds, rows)
        if self._view:
            self._view.update(step, phase, plain, seconds)

    def event(self, kind: str, **data: Any) -> None:
        """Record an event: a skipped batch, a warning, a held-out score (`kind="heldout", name="final",
        scores={task: accuracy}`)."""
        if self.main:
            self.events += 1
            data = blank_all(data)
            append_jsonl(
                self.folder / EVENTS, {"step": max(self._last, 0), **self._now, "kind": kind, **data}
            )
            if self._view:
                self._view.on_event(kind, data)
            if kind == "heldout":
                self._begin_trackers()
                scores = {f"heldout/{data['name']}/{task}": v for task, v in data["scores"].items()}
                self._trackers.scores(max(self._last, 0), scores)

    def warned(self, message: str) -> None:
        self.event("warning", message=message)

    def event_happened(self, kind: str, values: Mapping[str, object]) -> None:
        self.event(kind, **values)

    def progressed(self, what: str, done: int, total: int) -> None:
        """Show in the live view how far something between the steps is; nothing is written."""
        if self.main and self._view:
            self._view.progress(what, done, total)

    def flush(self) -> None:
        """Wait until all rollouts are on disk; raises the exception of a failed write."""
        while self._writing:
            self._writing.pop(0).result()

    def close(self) -> None:
        """Finish writing and end the live view and the trackers."""
        if not self.main:
            return
        try:
            self.flush()
        finally:
            self._worker.shutdown()
            if self._view:
                self._view.close()
            self._trackers.close()
            self._state_failures()

    def _write(self, step: int, rows: Sequence[Record]) -> None:
        path = self.folder / "rollouts" / f"step-{step:06d}.parquet"
        self._writing.append(self._worker.submit(write, rows, path, self._pictures))
        while len(self._writing) > _PENDING:
            self._writing.pop(0).result()

    def _begin_trackers(self) -> None:
        """Start the trackers, once the log is cut back to the checkpoint, and send what they lack of it."""
        self._trackers.begin(self._recorded)
        self._state_failures()

    def _recorded(self) -> list[dict[str, float]]:
        """The numbers of every recorded step, as trackers get them."""
        seconds = {row["step"]: row["seconds"] for row in read_record(self.folder, TIMINGS)}
        return [_tracked(row, seconds.get(row["step"], {})) for row in read_record(self.folder, METRICS)]

    def _track(self, row: Mapping[str, Any], seconds: Mapping[str, float], rows: Sequence[Record]) -> None:
        """Tell the trackers of a step."""
        count = self.tracker_rollouts

        def table() -> RolloutTable:
            return rollout_table(rows, count, lambda media: thumbnail(media, PICTURE_SIDE))

        self._trackers.log(row["step"], _tracked(row, seconds), table if rows and count else None)

    def _state_failures(self) -> None:
        """Say what went wrong with trackers, in the console and in the events."""
        for failure in self._trackers.take_failures():
            log.warning(failure)
            self.event("warning", message=failure)


def _tracked(row: Mapping[str, Any], seconds: Mapping[str, float]) -> dict[str, float]:
    """The numbers of a line of METRICS, and its seconds."""
    numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
    return {**numbers, **{f"seconds/{name}": value for name, value in seconds.items()}}


def read_record(folder: Path, name: str) -> list[dict[str, Any]]:
    """The objects of one of a run's files (METRICS, TIMINGS, EVENTS, SESSIONS); torn lines are skipped (see
    `vlrl/services/files.py`)."""
    return read_jsonl(folder / name, KEYS[name])


def _cut(path: Path, step: int, count: int | None = None) -> None:
    """Keep the lines up to a step, and of those the first `count`. Torn lines go."""
    if path.is_file():
        kept = [line for row, line in parse_jsonl(path, KEYS[path.name]) if row["step"] <= step]
        write_whole(path, "".join(line + "\n" for line in kept[:count]))


def _number(value: Any) -> float | int | None:
    """A JSON number; None for what JSON has none for (NaN, infinities)."""
    if isinstance(value, (bool, int)):
        return int(value)
    return float(value) if math.isfinite(float(value)) else None
