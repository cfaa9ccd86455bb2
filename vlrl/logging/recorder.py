"""The record of a run: metrics, timings, events and rollouts in its folder, and on request in a live view and in trackers.

`metrics.jsonl` holds nothing that depends on the clock, so the same seed gives the same file; a resumed run first cuts it back to its checkpoint's
step, so that a run that was killed ends with the same file as one that was not. Times go to `timings.jsonl`.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vlrl.logging.live import LiveView
from vlrl.logging.pictures import Pictures
from vlrl.logging.rollouts import Decode, records, write
from vlrl.logging.session import describe_session
from vlrl.logging.trackers import open_trackers
from vlrl.types import Group

METRICS, TIMINGS, EVENTS, SESSIONS = "metrics.jsonl", "timings.jsonl", "events.jsonl", "sessions.jsonl"
_PENDING = 2  # rollout files being written while training goes on


class Recorder:
    """Writes a run folder. Steps must increase over the whole run, phases included.

    `live` shows the view of `vlrl.logging.live`; `trackers` are names that accelerate knows ("tensorboard", "wandb", ...). `decode` (ids -> text)
    lets the report colour single tokens. With `main=False` (other ranks) nothing is written.
    """

    def __init__(
        self,
        folder: str | Path,
        run_config: Mapping[str, Any],
        live: bool = False,
        trackers: Sequence[str] = (),
        decode: Decode | None = None,
        main: bool = True,
    ) -> None:
        self.folder, self.main, self.decode = Path(folder), main, decode
        self.rollouts_every = int((run_config.get("watch") or {}).get("rollouts_every", 1))
        self._last = -1
        self._now: dict[str, Any] = {}
        self._pictures = Pictures()
        self._writing: list[Future[None]] = []
        if not main:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._last = max((row["step"] for row in read_lines(self.folder / METRICS)), default=-1)
        self._worker = ThreadPoolExecutor(1, "rollouts")
        self._trackers = open_trackers(trackers, self.folder, run_config)
        self._view = LiveView(run_config) if live else None
        _append(self.folder / SESSIONS, describe_session())

    def rewind(self, step: int) -> None:
        """Delete all records after `step`, the last step of the checkpoint (-1: all records)."""
        if not self.main:
            return
        self.flush()
        for name in (METRICS, TIMINGS, EVENTS):
            _cut(self.folder / name, step)
        for path in (self.folder / "rollouts").glob("step-*.parquet"):
            if int(re.findall(r"\d+", path.stem)[0]) > step:
                path.unlink()
        self._last = step

    def step(self, step: int, phase: str, metrics: Mapping[str, float], timings: Mapping[str, float], groups: Sequence[Group] = ()) -> None:
        """Record one step. `timings` are seconds by part; rollouts are written in the background every `watch.rollouts_every` steps (0: never)."""
        if not self.main:
            return
        if step <= self._last:
            raise ValueError(f"step {step} is already in {self.folder / METRICS} (last: {self._last}); resume the run, or give another `output`")
        self._last, self._now = step, {"step": step, "phase": phase}
        plain = {name: _number(value) for name, value in sorted(metrics.items())}
        seconds = {name: round(float(value), 6) for name, value in timings.items()}
        _append(self.folder / METRICS, {**self._now, **plain})
        _append(self.folder / TIMINGS, {**self._now, "seconds": seconds, "time": round(time.time(), 3)})
        if groups and self.rollouts_every and step % self.rollouts_every == 0:
            self._write(step, phase, groups)
        finite = {name: value for name, value in plain.items() if value is not None}
        for tracker in self._trackers:
            tracker.log({**finite, **{f"seconds/{name}": value for name, value in seconds.items()}}, step=step)
        if self._view:
            self._view.update(step, phase, plain, seconds)

    def event(self, kind: str, **data: Any) -> None:
        """Record an event: a skipped batch, a warning, a held-out score (`kind="heldout", name="final", scores={task: accuracy}`)."""
        if self.main:
            _append(self.folder / EVENTS, {"step": max(self._last, 0), **self._now, "kind": kind, **data})
            if self._view:
                self._view.say(kind, data)

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
            for tracker in self._trackers:
                tracker.finish()

    def _write(self, step: int, phase: str, groups: Sequence[Group]) -> None:
        rows = records(step, phase, groups, self.decode)
        path = self.folder / "rollouts" / f"step-{step:06d}.parquet"
        self._writing.append(self._worker.submit(write, rows, path, self._pictures))
        while len(self._writing) > _PENDING:
            self._writing.pop(0).result()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file; a last line that a killed process left half-written is ignored."""
    return [row for row, _ in _parse(path)]


def _parse(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            yield json.loads(line), line
        except json.JSONDecodeError:
            if number < len(lines):  # not the torn last line of a killed process
                raise ValueError(f"{path}:{number}: not a line of JSON") from None


def _cut(path: Path, step: int) -> None:
    if path.is_file():
        kept = [line for row, line in _parse(path) if row["step"] <= step]
        scratch = path.with_suffix(".part")
        scratch.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        os.replace(scratch, path)


def _append(path: Path, row: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:  # one write of one line: a kill leaves at most one torn line, the last
        file.write(json.dumps(row, ensure_ascii=False, default=float) + "\n")


def _number(value: Any) -> float | int | None:
    """A JSON number; None for what JSON has none for (NaN, infinities)."""
    if isinstance(value, (bool, int)):
        return int(value)
    return float(value) if math.isfinite(float(value)) else None
