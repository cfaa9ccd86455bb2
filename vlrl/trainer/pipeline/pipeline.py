"""The loops that collect batches ahead of the step that trains on them: `loop: one_step_off` and `loop:
asynchronous`.

Where the engine has weights of its own, batches are collected in a thread while the trainer works; with an
engine that shares the trainer's weights ('hf') the same staleness is played in turn, so that a seed gives the
same run.

`one_step_off`: while the trainer works on a batch, the next one is sampled with the weights that this update
started from (Noukhovitch et al. 2024, arXiv:2410.18252). At step k the policy is updated on the batch that
was sampled under the weights of step k - 1; the first step's batch is on-policy. `loop_options` takes
nothing.

`asynchronous`: collection with bounded staleness (Fu et al. 2025, AReaL, arXiv:2505.24298). Submission
control keeps
floor((N - 1) / B) <= i + eta for N submitted rollouts, batch size B and update i: here at most `staleness` =
eta batches beyond the one being trained on (`loop_options: {staleness: 2}`). Generation is interruptible: an
engine that receives new weights in mid-sequence recomputes its keys and values and goes on, with a `version`
per token. The objective is decoupled PPO: the ratio is taken against the present policy.

Both are off-policy; `token_weights: {engine: {name: tis}}` carries pi_prox / pi_behaviour.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from vlrl.plugins.contexts import RunContext
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import Stage
from vlrl.services.files import read_jsonl
from vlrl.trainer.ranks.collectives import OwnGroup, gather, sum_over_ranks
from vlrl.trainer.step.loop import NOTHING_LEARNED, assign, collect, learn, replayed
from vlrl.trainer.step.loss import means
from vlrl.trainer.step.stats import StepStats, end_step, over_ranks
from vlrl.types import Group, Prompt, Rollout, Row

_PIPELINES: WeakKeyDictionary[Any, Pipeline] = WeakKeyDictionary()
_ROLLOUT_FIELDS = (
    *(
        "ids",
        "text",
        "logp",
        "finish",
        "loss_mask",
        "version",
        "source",
        "temperature",
        "rewards",
        "reward",
        "outcome",
        "correct",
        "signals",
    ),
    *("sampled_mask", "info"),
)


# --- the two loops ------------------------------------------------------------------------------------------


def one_step_off(run: RunContext) -> dict[str, float]:
    """Train on the batch in stock while the next is collected."""
    if run.settings.loop_options:
        raise ConfigError(
            f"loop_options: loop 'one_step_off' takes none, got {dict(run.settings.loop_options)}"
        )
    pipeline = Pipeline.of(run, ahead=1)
    run.step += 1
    batch = pipeline.take(run)
    pipeline.order(run, run.step + 1)
    metrics = train_on(run, batch, before_sync=pipeline.receive)
    _report_seconds(run, batch, pipeline)
    _keep_stock(run, pipeline)
    return metrics


def asynchronous(run: RunContext) -> dict[str, float]:
    """Train on the oldest batch in stock, after ordering the collection of the next `staleness` ones."""
    ahead = _staleness(run)
    pipeline = Pipeline.of(run, ahead)
    run.step += 1
    pipeline.order(run, run.step + ahead)
    batch = pipeline.take(run)
    metrics = train_on(run, batch, lock=pipeline.lock)
    if _checkpoint_follows(run):
        pipeline.receive()  # the checkpoint must hold every row that was drawn
    _report_seconds(run, batch, pipeline)
    _keep_stock(run, pipeline)
    return metrics


def _staleness(run: RunContext) -> int:
    options = dict(run.settings.loop_options)
    ahead = options.pop("staleness", 2)
    if options or not isinstance(ahead, int) or ahead < 1:
        raise ConfigError(
            "loop_options: loop 'asynchronous' takes `staleness` (batches, 1 or more), got "
            f"{dict(run.settings.loop_options)}"
        )
    return ahead


# --- the stock of collected batches -------------------------------------------------------------------------


@dataclass
class CollectedBatch:
    """The result of one `collect`: the groups to train on, all sampled groups, the counters, and the seconds
    it took."""

    step: int
    groups: list[Group]
    sampled: list[Group] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    scored: int = 0
    errors: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class _LockedSampler:
    """The run's prompt sampler, called in the collecting thread while the main thread runs its `end_step`.
    All ranks must draw the same rows."""

    sampler: Any
    lock: threading.Lock
    accelerator: Any

    def __call__(self, n: int) -> list[Row]:
        with self.lock:
            rows: list[Row] = self.sampler(n)
        drawn = gather(self.accelerator, [[row.id for row in rows]])
        if any(other != drawn[0] for other in drawn):
            raise ConfigError(
                f"prompt_sampler: {self.sampler.name!r} draws other rows on other ranks while steps go on; "
                "use loop: synchronous"
            )
        return rows


class Pipeline:
    """Keeps up to `ahead` batches in stock. `overlaps`: they are collected while the trainer works. `idle`:
    seconds that the trainer waited."""

    def __init__(self, run: RunContext, ahead: int):
        self.phase, self.ahead = run.phase, ahead
        self.stock: deque[CollectedBatch] = deque(restore_batches(run))
        self.ordered = self.stock[-1].step if self.stock else run.step
        self.lock = threading.Lock()
        self.overlaps = overlaps(run)
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="vlrl-collect") if self.overlaps else None
        self.accelerator = (
            OwnGroup(run.accelerator) if self.overlaps else run.accelerator
        )  # the trainer's collectives go on meanwhile
        self.pending: deque[Future[CollectedBatch]] = deque()
        self.idle = 0.0

    @classmethod
    def of(cls, run: RunContext, ahead: int) -> Pipeline:
        """The run's pipeline in its current phase. Called before a step begins."""
        if run not in _PIPELINES or _PIPELINES[run].phase != run.phase:
            _PIPELINES[run] = cls(run, ahead)
        return _PIPELINES[run]

    def take(self, run: RunContext) -> CollectedBatch:
        """The batch of step `run.step`."""
        if not self.stock:
            self.order(run, run.step)
            self.receive(everything=False)
        batch = self.stock.popleft()
        assert batch.step == run.step, f"a batch of step {batch.step} in step {run.step}"
        return batch

    @contextmanager
    def _timed_idle(self) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.idle += time.perf_counter() - begun

    def order(self, run: RunContext, up_to: int) -> None:
        """Start collecting the batches up to this step (never beyond the phase)."""
        last = min(up_to, run.step + run.settings.steps - run.phase_step - 1)
        for step in range(self.ordered + 1, last + 1):
            self.ordered = step
            view = self._collecting_view(run, step)
            if self.pool is not None:
                self.pending.append(self.pool.submit(collect_batch, view))
            else:
                with self._timed_idle(), view.policy.gather_params():
                    self.stock.append(collect_batch(view))

    def receive(self, everything: bool = True) -> None:
        """Move finished batches into the stock: wait for all that are pending, or for the next one."""
        while self.pending:
            with self._timed_idle():
                self.stock.append(self.pending.popleft().result())
            if not everything:
                return

    def _collecting_view(self, run: RunContext, step: int) -> RunContext:
        """The run as the collecting thread sees it: its own counters, and the number of the step that it
        collects for."""
        view = copy.copy(run)
        view.step, view.stats, view.accelerator = step, StepStats(), self.accelerator
        view.stats.scored, view.stats.score_errors = run.stats.scored, run.stats.score_errors
        view.prompt_sampler = _LockedSampler(run.prompt_sampler, self.lock, self.accelerator)
        return view


def overlaps(run: RunContext) -> bool:
    """Whether batches can be collected while the trainer works: an engine with its own weights, and no
    forward passes while collecting.

    Several ranks each draw all rows and take their share of them, so their samplers must not learn from
    steps, which end at other moments on each.
    """
    early = [*run.reward_shaping.values(), *run.group_filters.values()]
    same_draws = run.ranks == 1 or type(run.prompt_sampler).end_step is Stage.end_step
    return (
        bool(getattr(run.engine, "own_weights", False))
        and same_draws
        and not any(part.needs for part in early)
    )


def collect_batch(view: RunContext) -> CollectedBatch:
    """Collect for the step of `view`."""
    begun, stats = time.perf_counter(), view.stats
    scored, errors = stats.scored, stats.score_errors
    groups = collect(view)
    seconds = time.perf_counter() - begun
    return CollectedBatch(
        view.step,
        groups,
        stats.sampled,
        dict(stats.counts),
        stats.scored - scored,
        stats.score_errors - errors,
        seconds,
    )


def train_on(
    run: RunContext, batch: CollectedBatch, before_sync: Callable[[], None] = lambda: None, lock: Any = None
) -> dict[str, float]:
    """One update from a batch that was collected earlier. `before_sync` runs between the update and the
    engine's new weights."""
    run.stats.begin()
    run.stats.sampled = batch.sampled
    run.stats.count(batch.counts)
    run.stats.scored += batch.scored
    run.stats.score_errors += batch.errors
    groups = batch.groups
    for rollout in (r for group in groups for r in group):
        rollout.signals.pop(
            "old_logp", None
        )  # it is of the weights that collected it; the proximal policy is the present one
    with run.policy.gather_params():
        groups = replayed(run, groups)
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
        run.warn(NOTHING_LEARNED.format(step=run.step))
    with lock or threading.Lock():
        return end_step(run, learned)


def staleness(run: RunContext, groups: Sequence[Group]) -> dict[str, float]:
    """The age of the sampled tokens in updates: mean and maximum."""
    ages = []
    for rollout in (r for group in groups for r in group if r.source == "policy"):
        versions = rollout.version if isinstance(rollout.version, list) else [rollout.version] * len(rollout)
        ages += [run.policy.version - version for version in versions]
    return {"staleness/mean": sum(ages) / len(ages), "staleness/max": float(max(ages))} if ages else {}


def _report_seconds(run: RunContext, batch: CollectedBatch, pipeline: Pipeline) -> None:
    """Add to this step's timings: seconds that its batch took to collect, and seconds that the trainer was
    idle."""
    run.stats.seconds |= {"collect": batch.seconds, "idle": pipeline.idle}
    pipeline.idle = 0.0


def _checkpoint_follows(run: RunContext) -> bool:
    every = run.settings.watch.checkpoint_every
    return bool(every) and (run.phase_step + 1) % every == 0


def overlap(folder: Path) -> dict[str, float]:
    """Seconds over all steps of `timings.jsonl` that have a collected batch: both sides busy and idle, and
    how much of the collection was hidden.

    The engine is busy while a batch is collected, the trainer idle while it waits for one; `saved` =
    engine_busy - trainer_idle (0 for a synchronous loop, which waits for all of the collection). {} for a run
    without such steps. Edge: with both sides on the same cores, collection takes longer while the trainer
    works, so `saved` exceeds the wall-clock time that is gained.
    """
    steps = [
        row["seconds"] for row in read_jsonl(folder / "timings.jsonl") if "collect" in row.get("seconds", ())
    ]
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


# --- the stock in checkpoints -------------------------------------------------------------------------------


def _keep_stock(run: RunContext, pipeline: Pipeline) -> None:
    """Put the stock into the run's state, so that a restart trains on the very same batches."""
    try:
        run.collected_ahead = {
            "phase": run.phase,
            "batches": [_plain_batch(batch) for batch in pipeline.stock],
        }
    except (TypeError, ValueError) as error:
        run.collected_ahead = None
        run.warn(
            f"step {run.step}: the batches collected ahead cannot be saved ({error}); a restart samples "
            "them anew"
        )


def settle(run: RunContext) -> None:
    """Before a checkpoint: wait for the batches that are being collected, so that it holds every row that was
    drawn."""
    pipeline = _PIPELINES.get(run)
    if pipeline is not None and pipeline.phase == run.phase and pipeline.pending:
        pipeline.receive()
        _keep_stock(run, pipeline)


def _plain_batch(batch: CollectedBatch) -> dict[str, Any]:
    trained = {id(group): index for index, group in enumerate(batch.groups)}
    everything = [*batch.groups, *(group for group in batch.sampled if id(group) not in trained)]
    place = {id(group): index for index, group in enumerate(everything)}
    values = {
        "step": batch.step,
        "scored": batch.scored,
        "errors": batch.errors,
        "counts": batch.counts,
        "trained": len(batch.groups),
        "sampled": [place[id(group)] for group in batch.sampled],
        "groups": [_plain_group(group) for group in everything],
    }
    return json.loads(json.dumps(values))


def _plain_group(group: Group) -> dict[str, Any]:
    for rollout in group:
        if rollout.prompt.key != group.prompt.key or rollout.prompt.train is not None or rollout.top_logprobs:
            raise ValueError(f"row {group.row.id!r}: a rollout has a prompt of its own, or top log-probs")
    rollouts = [{name: getattr(rollout, name) for name in _ROLLOUT_FIELDS} for rollout in group]
    return {
        "row": group.row.id,
        "prompt": group.prompt.key,
        "id": group.id,
        "info": group.info,
        "rollouts": rollouts,
    }


def restore_batches(run: RunContext) -> list[CollectedBatch]:
    """The saved batches for the steps that follow; what cannot be rebuilt is sampled anew, with a warning."""
    kept, run.collected_ahead = run.collected_ahead, None
    if not kept or kept["phase"] != run.phase or not kept["batches"]:
        return []
    rows = {row.id: row for source in run.rows.values() for row in source}
    prompts: dict[str, Prompt] = {}
    out = []
    for values in kept["batches"]:
        groups = []
        for saved in values["groups"]:
            prompt = prompts.get(saved["row"]) or run.prompt_template(rows[saved["row"]])
            if prompt.key != saved["prompt"]:
                run.warn(
                    f"resume: the prompt of row {saved['row']!r} is not what it was; "
                    f"{len(kept['batches'])} batches are sampled anew"
                )
                return []
            prompts[saved["row"]] = prompt
            spaces = tuple(run.policy.spaces(prompt))
            rollouts = [Rollout(prompt=prompt, spaces=spaces, **rollout) for rollout in saved["rollouts"]]
            groups.append(Group(prompt=prompt, rollouts=rollouts, id=saved["id"], info=saved["info"]))
        sampled = [groups[place] for place in values["sampled"]]
        out.append(
            CollectedBatch(
                values["step"],
                groups[: values["trained"]],
                sampled,
                values["counts"],
                values["scored"],
                values["errors"],
            )
        )
    return out


def redistribute(parts: Sequence[Mapping[str, Any]], rank: int, ranks: int) -> dict[str, Any]:
    """This rank's share of batches that another number of ranks collected ahead: every group goes to one
    rank, counters to the first."""
    batches = []
    for same_step in zip(*(part["batches"] for part in parts)):
        trained = [group for batch in same_step for group in batch["groups"][: batch["trained"]]][rank::ranks]
        dropped = [group for batch in same_step for group in batch["groups"][batch["trained"] :]][rank::ranks]
        counts: dict[str, float] = {}
        for batch in same_step if rank == 0 else ():
            for name, value in batch["counts"].items():
                counts[name] = counts.get(name, 0.0) + value
        groups = [*trained, *dropped]
        numbers = {
            name: sum(batch[name] for batch in same_step) if rank == 0 else 0 for name in ("scored", "errors")
        }
        shared = {
            "step": same_step[0]["step"],
            "counts": counts,
            "trained": len(trained),
            "sampled": list(range(len(groups))),
            "groups": groups,
        }
        batches.append({**numbers, **shared})
    return {"phase": parts[0]["phase"], "batches": batches}
