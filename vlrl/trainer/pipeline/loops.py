"""The loops of a phase: `loop: synchronous`, and two that collect batches ahead of the step that trains on
them.

Where the engine has weights of its own, batches are collected in a thread; with one that shares the trainer's
('hf') the same staleness is played in turn, so that a seed gives the same run.

`one_step_off`: step k trains on the batch sampled under the weights of step k - 1 (Noukhovitch et al. 2024,
arXiv:2410.18252); the first batch is on-policy. `asynchronous`: bounded staleness (Fu et al. 2025, AReaL,
arXiv:2505.24298):

    floor((N - 1) / B) <= i + eta,  N submitted rollouts, batch size B, update i, eta = `staleness`

Generation is interruptible: new weights in mid-sequence recompute keys and values, with a `version` per
token. `token_weights: {engine: {name: tis}}` carries pi_prox / pi_behaviour.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import PromptSampler, Stage
from vlrl.services.files import read_jsonl
from vlrl.trainer.pipeline.batch import CollectedBatch, batches_of
from vlrl.trainer.ranks.collectives import OwnGroup, gather
from vlrl.trainer.session import Session
from vlrl.trainer.step.loop import assign, collect, replay, train_step, update
from vlrl.trainer.step.step import Step
from vlrl.trainer.views import StepView
from vlrl.types import Group, Row

if TYPE_CHECKING:
    from accelerate import Accelerator


class Loop:
    """The synchronous loop of a session's current phase, and the base of the others."""

    def __init__(self, session: Session, saved: Mapping[str, Any] | None = None) -> None:
        self.session = session

    def step(self) -> Step:
        """Take one step."""
        return train_step(self.session)

    def drain(self) -> None:
        """Wait for what is being collected, so that a checkpoint holds every row that was drawn."""

    def to_plain(self) -> dict[str, Any] | None:
        """The batches in stock as plain values, for a checkpoint; None without any."""
        return None


class LoopAhead(Loop):
    """Keeps batches in stock. `can_overlap`: they are collected while the trainer works."""

    def __init__(self, session: Session, saved: Mapping[str, Any] | None = None) -> None:
        super().__init__(session, saved)
        self.stock: deque[CollectedBatch] = deque(batches_of(session, saved))
        self.submitted = self.stock[-1].step.number if self.stock else session.step
        self.lock = threading.Lock()
        self.can_overlap = can_overlap(session)
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="vlrl-collect") if self.can_overlap else None
        # the trainer's collectives go on while a batch is collected
        self.accelerator: Any = OwnGroup(session.accelerator) if self.can_overlap else session.accelerator
        self.pending: deque[Future[CollectedBatch]] = deque()
        self.idle = 0.0  # seconds that the trainer waited

    def submit(self, up_to: int) -> None:
        """Start collecting the batches up to this step (never beyond the phase)."""
        session = self.session
        last = min(up_to, session.step + session.settings.steps - session.phase_step - 1)
        for number in range(self.submitted + 1, last + 1):
            self.submitted = number
            view = StepView(
                session,
                Step(number, session.phase_step),
                self.accelerator,
                LockedSampler(session.current.prompt_sampler, self.lock, self.accelerator),
                replace(session.score_counts),
            )
            if self.pool is not None:
                self.pending.append(self.pool.submit(collect_batch, view))
            else:
                with self._timed_idle(), session.policy.gather_params():
                    self.stock.append(collect_batch(view))

    def next(self) -> CollectedBatch:
        """The batch of the session's step."""
        session = self.session
        if not self.stock:
            self.submit(session.step)
            self._receive()
        batch = self.stock.popleft()
        assert batch.step.number == session.step, (
            f"a batch of step {batch.step.number} in step {session.step}"
        )
        return batch

    def drain(self) -> None:
        while self.pending:
            self._receive()

    def to_plain(self) -> dict[str, Any] | None:
        try:
            return {"phase": self.session.phase, "batches": [batch.to_plain() for batch in self.stock]}
        except (TypeError, ValueError) as error:
            self.session.warn(
                f"step {self.session.step}: the batches collected ahead cannot be saved ({error}); a restart "
                "samples them anew"
            )
            return None

    def train_on(self, batch: CollectedBatch, before_sync: Callable[[], None] = lambda: None) -> Step:
        """One update from a batch that was collected earlier. `before_sync` runs between the update and the
        engine's new weights."""
        session = self.session
        step = batch.begin(session.phase_step)
        session.score_counts.add(batch.scored, batch.errors)
        view = StepView(session, step)
        for rollout in (r for group in step.groups for r in group):
            rollout.signals.pop("old_logp", None)  # of the weights that collected it; the present ones count
        with session.policy.gather_params():
            replay(view)
            assign(view)
        step.metrics |= staleness(session.policy.version, step.groups)
        update(view, before_sync, self.lock)
        step.seconds |= {"collect": batch.seconds, "idle": self.idle}
        self.idle = 0.0
        return step

    def _receive(self) -> None:
        if self.pending:
            with self._timed_idle():
                self.stock.append(self.pending.popleft().result())

    @contextmanager
    def _timed_idle(self) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.idle += time.perf_counter() - begun


class OneStepOff(LoopAhead):
    """Trains on the batch in stock while the next is collected."""

    def __init__(self, session: Session, saved: Mapping[str, Any] | None = None) -> None:
        if session.settings.loop_options:
            raise ConfigError(
                f"loop_options: loop 'one_step_off' takes none, got {dict(session.settings.loop_options)}"
            )
        super().__init__(session, saved)

    def step(self) -> Step:
        self.session.begin_step()
        batch = self.next()
        self.submit(self.session.step + 1)
        return self.train_on(batch, before_sync=self.drain)


class Asynchronous(LoopAhead):
    """Trains on the oldest batch in stock, after starting the collection of the next `staleness` ones."""

    def __init__(self, session: Session, saved: Mapping[str, Any] | None = None) -> None:
        options = dict(session.settings.loop_options)
        self.ahead = options.pop("staleness", 2)
        if options or not isinstance(self.ahead, int) or self.ahead < 1:
            raise ConfigError(
                "loop_options: loop 'asynchronous' takes `staleness` (batches, 1 or more), got "
                f"{dict(session.settings.loop_options)}"
            )
        super().__init__(session, saved)

    def step(self) -> Step:
        self.session.begin_step()
        self.submit(self.session.step + self.ahead)
        return self.train_on(self.next())


LOOPS: dict[str, type[Loop]] = {
    "synchronous": Loop,
    "one_step_off": OneStepOff,
    "asynchronous": Asynchronous,
}


def open_loop(session: Session, saved: Mapping[str, Any] | None = None) -> Loop:
    """The loop of the session's phase; `saved` are batches that were collected before a restart. Raises
    ConfigError for options that it does not take."""
    return LOOPS[session.settings.loop](session, saved)


@dataclass(frozen=True)
class LockedSampler:
    """The phase's prompt sampler, called in the collecting thread while the main thread runs its `end_step`.
    All
    ranks must draw the same rows."""

    sampler: PromptSampler
    lock: threading.Lock
    accelerator: Accelerator

    def __call__(self, n: int) -> list[Row]:
        with self.lock:
            rows: list[Row] = self.sampler(n)
        drawn = gather(self.accelerator, [[row.id for row in rows]])
        if any(other != drawn[0] for other in drawn):
            raise ConfigError(
                f"prompt_sampler: {self.sampler.name!r} draws other rows on other ranks while steps go on; "
                "use "
                "loop: synchronous"
            )
        return rows


def can_overlap(session: Session) -> bool:
    """Whether batches can be collected while the trainer works: an engine with its own weights, and no
    forward
    passes while collecting.

    Several ranks each draw all rows and take their share of them, so their samplers must not learn from
    steps,
    which end at other moments on each.
    """
    phase = session.current
    early = [*phase.reward_shaping.values(), *phase.group_filters.values()]
    same_draws = session.ranks == 1 or type(phase.prompt_sampler).end_step is Stage.end_step
    return session.engine.own_weights and same_draws and not any(part.needs for part in early)


def collect_batch(view: StepView) -> CollectedBatch:
    """Collect for the step of `view`."""
    begun, counts = time.perf_counter(), replace(view.score_counts)
    collect(view)
    scores = view.score_counts
    return CollectedBatch(
        view.record,
        scores.scored - counts.scored,
        scores.errors - counts.errors,
        time.perf_counter() - begun,
    )


def staleness(version: int, groups: Sequence[Group]) -> dict[str, float]:
    """The age of the sampled tokens in updates: mean and maximum."""
    ages = []
    for rollout in (r for group in groups for r in group if r.source == "policy"):
        versions = rollout.version if isinstance(rollout.version, list) else [rollout.version] * len(rollout)
        ages += [version - of_token for of_token in versions]
    return {"staleness/mean": sum(ages) / len(ages), "staleness/max": float(max(ages))} if ages else {}


def overlap_seconds(folder: Path) -> dict[str, float]:
    """Seconds over all steps of `timings.jsonl` that have a collected batch: both sides busy and idle, and
    how
    much of the collection was hidden.

    The engine is busy while a batch is collected, the trainer idle while it waits for one; `saved` =
    engine_busy -
    trainer_idle (0 for a synchronous loop, which waits for all of the collection). {} for a run without such
    steps. Edge: with both sides on the same cores, collection takes longer while the trainer works, so
    `saved`
    exceeds the wall-clock time that is gained.
    """
    timings = read_jsonl(folder / "timings.jsonl")
    steps = [row["seconds"] for row in timings if "collect" in row.get("seconds", ())]
    if not steps:
        return {}
    wall, collecting, idle = (sum(seconds[name] for seconds in steps) for name in ("step", "collect", "idle"))
    values = {
        "engine_busy": collecting,
        "engine_idle": max(0.0, wall - collecting),
        "trainer_busy": wall - idle,
        "trainer_idle": idle,
        "saved": max(0.0, collecting - idle),
    }
    return {name: round(value, 2) for name, value in values.items()}
