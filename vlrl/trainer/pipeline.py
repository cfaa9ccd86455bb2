"""Batches that are collected ahead of the step that trains on them: in a thread where the engine has weights of its own, else in turn."""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from vlrl.trainer import pending as _pending
from vlrl.trainer.distributed import sum_over_ranks
from vlrl.trainer.loop import assign, collect, learn
from vlrl.trainer.loss import means
from vlrl.trainer.stats import StepStats, end_step, over_ranks
from vlrl.types import Group, Row

if TYPE_CHECKING:
    from vlrl.context import RunContext

_PIPELINES: WeakKeyDictionary[Any, Pipeline] = WeakKeyDictionary()


@dataclass
class Batch:
    """What one `collect` gave: the groups to train on, all that were sampled, the counters, how long it took (s)."""

    step: int
    groups: list[Group]
    sampled: list[Group] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    scored: int = 0
    errors: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class _LockedSampler:
    """The run's sampler, drawn from in the collecting thread while the main one lets it observe."""

    sampler: Any
    lock: Any

    def __call__(self, n: int) -> list[Row]:
        with self.lock:
            return self.sampler(n)


class Pipeline:
    """Keeps up to `ahead` batches in stock. `overlaps`: they are collected while the trainer works. `waited`: the seconds it stood still."""

    def __init__(self, run: RunContext, ahead: int):
        self.phase, self.ahead = run.phase, ahead
        self.stock: deque[Batch] = deque(_pending.restore(run, Batch))
        self.ordered = self.stock[-1].step if self.stock else run.step
        self.lock = threading.Lock()
        self.overlaps = overlaps(run)
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="vlrl-collect") if self.overlaps else None
        self.under_way: deque[Future[Batch]] = deque()
        self.waited = 0.0

    @classmethod
    def of(cls, run: RunContext, ahead: int) -> Pipeline:
        """The run's pipeline in its present phase. Asked for before a step begins."""
        if run not in _PIPELINES or _PIPELINES[run].phase != run.phase:
            _PIPELINES[run] = cls(run, ahead)
        return _PIPELINES[run]

    def take(self, run: RunContext) -> Batch:
        """The batch of step `run.step`."""
        if not self.stock:
            self.order(run, run.step)
            self.receive(all_of_them=False)
        batch = self.stock.popleft()
        assert batch.step == run.step, f"a batch of step {batch.step} in step {run.step}"
        return batch

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.waited += time.perf_counter() - begun

    def order(self, run: RunContext, up_to: int) -> None:
        """Have the batches up to this step collected (never beyond the phase)."""
        last = min(up_to, run.step + run.settings.steps - run.phase_step - 1)
        for step in range(self.ordered + 1, last + 1):
            self.ordered = step
            shadow = self._shadow(run, step)
            if self.pool is not None:
                self.under_way.append(self.pool.submit(gather_batch, shadow))
            else:
                with self._waiting():
                    self.stock.append(gather_batch(shadow))

    def receive(self, all_of_them: bool = True) -> None:
        """Move finished batches into the stock, waiting for all that are under way, or for the next."""
        while self.under_way:
            with self._waiting():
                self.stock.append(self.under_way.popleft().result())
            if not all_of_them:
                return

    def _shadow(self, run: RunContext, step: int) -> RunContext:
        """The run as a collecting thread sees it: counters of its own, and the number of the step it collects for."""
        shadow = copy.copy(run)
        shadow.step, shadow.stats = step, StepStats()
        shadow.stats.scored, shadow.stats.score_errors = run.stats.scored, run.stats.score_errors
        shadow.prompt_sampler = _LockedSampler(run.prompt_sampler, self.lock)  # type: ignore[assignment]
        return shadow


def overlaps(run: RunContext) -> bool:
    """Whether batches can be collected while the trainer works: one process, an engine with its own weights, no forward passes while collecting."""
    early = [*run.reward_shaping.values(), *run.group_filters.values()]
    return bool(getattr(run.engine, "own_weights", False)) and run.accelerator.num_processes == 1 and not any(part.needs for part in early)


def gather_batch(shadow: RunContext) -> Batch:
    """Collect for the shadow's step."""
    begun, stats = time.perf_counter(), shadow.stats
    scored, errors = stats.scored, stats.score_errors
    with shadow.policy.gather_params():
        groups = collect(shadow)
    return Batch(
        shadow.step, groups, stats.sampled, dict(stats.counts), stats.scored - scored, stats.score_errors - errors, time.perf_counter() - begun
    )


def train_on(run: RunContext, batch: Batch, before_sync: Any = lambda: None, lock: Any = None) -> dict[str, float]:
    """One update from a batch that was collected earlier. `before_sync` runs between the update and the engine's new weights."""
    run.stats.begin()
    run.stats.sampled = batch.sampled
    run.stats.count(batch.counts)
    run.stats.scored += batch.scored
    run.stats.score_errors += batch.errors
    groups = batch.groups
    for rollout in (r for group in groups for r in group):
        rollout.signals.pop("old_logp", None)  # of the weights that it was collected with: the proximal policy is the present one
    with run.policy.gather_params():
        groups = run.replay(groups) if run.replay is not None else groups
        assign(groups, run)
    run.groups = list(groups)
    learned: dict[str, float] = staleness(run, groups)
    if sum_over_ranks(run.accelerator, [len(groups)])[0]:
        with run.stats.timed("learn"):
            sums = learn(groups, run)
        learned |= means(over_ranks(run.accelerator, sums))
        before_sync()
        run.policy.version += 1
        with run.stats.timed("sync"):
            run.engine.sync(run.policy)
    else:
        before_sync()
        run.warn(f"step {run.step}: no group survived the gates and the scorer, so nothing was learned; see the gate/* counters")
    with lock or threading.Lock():
        return end_step(run, learned)


def staleness(run: RunContext, groups: Sequence[Group]) -> dict[str, float]:
    """How many updates old the sampled tokens are: mean and most."""
    ages = []
    for rollout in (r for group in groups for r in group if r.source == "policy"):
        versions = rollout.version if isinstance(rollout.version, list) else [rollout.version] * len(rollout)
        ages += [run.policy.version - version for version in versions]
    return {"staleness/mean": sum(ages) / len(ages), "staleness/max": float(max(ages))} if ages else {}


def report(run: RunContext, batch: Batch, pipeline: Pipeline) -> None:
    """Into this step's timings: how long its batch took to collect, and how long the trainer waited during the step (s)."""
    run.stats.seconds |= {"collect": batch.seconds, "waited": pipeline.waited}
    pipeline.waited = 0.0


def remember(run: RunContext, pipeline: Pipeline) -> None:
    """Put the stock into the run's state, so that a restart trains on the very same batches."""
    try:
        _pending.keep(run, list(pipeline.stock))
    except (TypeError, ValueError) as error:
        run.warn(f"step {run.step}: the batches collected ahead cannot be kept over a restart ({error}); they would be sampled anew")


def due(run: RunContext) -> bool:
    """Whether a checkpoint follows this step."""
    every = run.settings.watch.checkpoint_every
    return bool(every) and (run.phase_step + 1) % every == 0


__all__ = ["Batch", "Pipeline", "due", "remember", "report", "train_on"]
