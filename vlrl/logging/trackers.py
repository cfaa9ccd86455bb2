"""Trackers (TensorBoard, W&B, MLflow, trackio, SwanLab) of a run: a second place for its numbers, its config
and a sample of its rollouts.

`metrics.jsonl` stays the record. Trackers are told in a thread of their own, so that a slow one costs no step
and one that fails ends no run: that is said once, and what it lacks is sent when the run is resumed.
`trackers.json` in the run's folder has the run's id, the same after a resume, and the last step that each
tracker has.
"""

from __future__ import annotations

import json
import queue
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl.services.files import write_whole

MARKS = "trackers.json"
CLOSE_SECONDS = 120.0  # a run that is over waits so long for its trackers
PICTURE_SIDE = 512  # pixels of the pictures that trackers get
_TEXT = 2000  # characters of a prompt or completion in a tracker's table


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told when it starts: the run's id, which stays the same after a resume, its name, its
    folder, and its config without secrets."""

    id: str
    name: str
    folder: Path
    config: Mapping[str, Any]


@dataclass(frozen=True)
class RolloutTable:
    """Rollouts of a step: `rows` are text and numbers by `columns`, `pictures` the encoded first picture of
    each row, None where it has none."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    pictures: tuple[bytes | None, ...]


class Tracker(ABC):
    """One library. All methods are called from the same thread; no step is sent twice."""

    @abstractmethod
    def start(self, run: TrackedRun) -> None:
        """Open the run, or go on with the one of this id, and store the config."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float], table: RolloutTable | None) -> None:
        """Store a step."""

    def scores(self, step: int, scores: Mapping[str, float]) -> None:
        """Store held-out scores of the run as a whole."""
        self.log(step, scores, None)

    @abstractmethod
    def finish(self) -> None:
        """Send what is left, and close."""


class Trackers:
    """Tells all trackers of a run, in a thread that `begin` starts.

    `failures` are what went wrong, for the caller to say; a tracker that failed is left alone from then on.
    """

    def __init__(
        self, trackers: Mapping[str, Tracker], folder: Path, config: Mapping[str, Any], name: str = ""
    ) -> None:
        self.trackers = dict(trackers)
        self.folder, self.config, self.name = folder, config, name or folder.resolve().name
        self.failures: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._marks = _read_marks(folder / MARKS)
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, known: Callable[[], Sequence[Mapping[str, float]]]) -> None:
        """Start the trackers, and send them the steps of `known` (numbers by name, "step" among them) that
        they do not have. Does nothing the second time."""
        if self._thread is not None or not self.trackers:
            return
        run = TrackedRun(self._marks["id"], self.name, self.folder, self.config)
        self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)
        self._thread.start()
        self._each(lambda tracker: tracker.start(run))
        for row in known():
            self.log(int(row["step"]), row)

    def log(
        self, step: int, values: Mapping[str, float], table: Callable[[], RolloutTable] | None = None
    ) -> None:
        """Store a step in every tracker that does not have it. `table` is made in the trackers' thread."""
        values = {name: value for name, value in values.items() if name != "step"}
        made: list[RolloutTable | None] = []

        def send(name: str, tracker: Tracker) -> None:
            if step <= self._marks["sent"].get(name, -1):
                return
            if not made:
                made.append(table() if table else None)
            tracker.log(step, values, made[0])
            self._marks["sent"][name] = step

        self._submit(send)

    def scores(self, step: int, scores: Mapping[str, float]) -> None:
        """Store held-out scores of the run as a whole, each once a step."""

        def send(name: str, tracker: Tracker) -> None:
            told = self._marks["scores"].setdefault(name, [])
            new = {key: value for key, value in scores.items() if [step, key] not in told}
            if new:
                tracker.scores(step, new)
                told += [[step, key] for key in new]

        self._submit(send)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what is left and close; after `seconds` what is not sent is left for a resume."""
        if self._thread is None:
            return
        self._each(lambda tracker: tracker.finish())
        self._jobs.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.failures.put(
                f"trackers ({', '.join(self.trackers)}) did not finish within {seconds:g} s and may lack the "
                "last steps; `--resume` sends them"
            )

    def take_failures(self) -> list[str]:
        """What went wrong since the last call."""
        found = []
        while not self.failures.empty():
            found.append(self.failures.get())
        return found

    def _each(self, send: Callable[[Tracker], None]) -> None:
        self._submit(lambda _, tracker: send(tracker))

    def _submit(self, send: Callable[[str, Tracker], None]) -> None:
        def job() -> None:
            for name, tracker in [*self.trackers.items()]:
                self._guarded(name, tracker, send)

        if self.trackers:
            self._jobs.put(job)

    def _guarded(self, name: str, tracker: Tracker, send: Callable[[str, Tracker], None]) -> None:
        try:
            send(name, tracker)
        except (Exception, SystemExit) as error:  # of somebody else's library: no reason to end a run
            del self.trackers[name]
            said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self.failures.put(
                f"tracker {name} failed and gets no more of this run: {said}; the numbers are in "
                "metrics.jsonl, `--resume` sends what it lacks"
            )

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            self._write_marks()

    def _write_marks(self) -> None:
        try:
            write_whole(self.folder / MARKS, json.dumps(self._marks) + "\n")
        except OSError as error:  # a full disk: the run's own files will say so
            self.failures.put(f"{MARKS} could not be written: {error}")


def _read_marks(path: Path) -> dict[str, Any]:
    """{"id", "sent": {tracker: step}, "scores": {tracker: [[step, name], ...]}}; a new id where the file is
    missing or damaged."""
    try:
        said = json.loads(path.read_bytes())
        sent = {str(name): int(step) for name, step in said["sent"].items()}
        scores = {
            str(name): [[int(step), str(key)] for step, key in told] for name, told in said["scores"].items()
        }
        return {"id": str(said["id"]), "sent": sent, "scores": scores}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {"id": uuid.uuid4().hex[:20], "sent": {}, "scores": {}}


def rollout_table(
    records: Sequence[Mapping[str, Any]], count: int, picture: Callable[[Any], Mapping[str, Any]]
) -> RolloutTable:
    """The first `count` rollouts of a step, of `vlrl.logging.rollouts.records`. `picture` encodes a
    medium."""
    rows = [*records[:count]]
    parts = sorted({name for row in rows for name in row if name.startswith(("reward/", "part/"))})
    columns = ("id", "task", "prompt", "completion", "reward", *parts, "advantage", "correct", "answer")
    table = tuple(tuple(_cell(row.get(name)) for name in columns) for row in rows)
    pictures = tuple(bytes(picture(row["media"][0])["bytes"]) if row["media"] else None for row in rows)
    return RolloutTable(columns, table, pictures)


def _cell(value: Any) -> Any:
    return value[:_TEXT] + " ..." if isinstance(value, str) and len(value) > _TEXT else value
