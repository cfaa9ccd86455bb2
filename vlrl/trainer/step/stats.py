"""Counters of a step, and the metrics that it logs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vlrl.trainer.ranks.collectives import all_groups, gather
from vlrl.trainer.step.loss import Sums, add_sums, means
from vlrl.types import Group, Row

if TYPE_CHECKING:
    from accelerate import Accelerator

    from vlrl.plugins.contexts import RunContext


class StepStats:
    """Counters of the current step (`counts`, the groups `sampled`, optimizer `updates`) and of the run so
    far (`scored`, `score_errors`)."""

    def __init__(self) -> None:
        self.scored = 0
        self.score_errors = 0
        self.begin()

    def begin(self) -> None:
        """Start a step."""
        self.counts: dict[str, float] = defaultdict(float)
        self.sampled: list[Group] = []
        self.first: dict[str, int] = {}  # row id -> the first rank that drew it in this step
        self.shared: dict[str, int] = {}  # row id that another rank drew first -> this rank
        self.updates = 0
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the wall-clock seconds of a part of the step to `seconds`."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - begun

    def shard_rows(self, rows: Sequence[Row], rank: int, world: int) -> Sequence[Row]:
        """This rank's share of the rows that all ranks drew.

        Rows that another rank has too are recorded in `shared`, so that each rank samples them from its own
        random stream.
        """
        for place, row in enumerate(rows):
            self.first.setdefault(row.id, place % world)
        self.shared |= {row.id: rank for row in rows[rank::world] if self.first[row.id] != rank}
        return rows[rank::world]

    def count(self, values: Mapping[str, float]) -> None:
        """Add to this step's counters; they are summed over ranks for the log."""
        for name, value in values.items():
            self.counts[name] += value

    def state_dict(self) -> dict[str, Any]:
        """The counters of the run so far."""
        return {"scored": self.scored, "score_errors": self.score_errors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self.scored, self.score_errors = state["scored"], state["score_errors"]


def end_step(run: RunContext, learned: Mapping[str, float]) -> dict[str, float]:
    """Ends a step on all ranks: calls `end_step` of every plug-in, then metrics and callbacks. Returns the
    step's numbers, equal on all ranks."""
    everyone, _ = all_groups(run.accelerator, run.groups)
    sampled, _ = all_groups(run.accelerator, run.stats.sampled)
    metrics = dict(learned)
    for counts in gather(run.accelerator, [dict(run.stats.counts)]):
        for name, value in counts[0].items():
            metrics[name] = metrics.get(name, 0.0) + value
    metrics.update(describe(sampled, everyone))
    metrics["reward/errors"] = float(
        sum(part[0] for part in gather(run.accelerator, [run.stats.score_errors]))
    )
    run.sampled_groups, run.answered_groups, run.trained_groups = sampled, answered(sampled), everyone
    for _, plugin in run.current.plugins():
        plugin.end_step(run)
    for slot, metric in run.metrics.items():
        metrics.update(
            {
                f"{slot}/{name}" if slot != name else name: float(value)
                for name, value in metric(everyone).items()
            }
        )
    own: dict[str, float | tuple[float, float]] = {}
    for _, plugin in run.current.plugins():
        own.update(plugin.metrics())
    run.engine.end_step(run)
    own.update(run.engine.metrics())
    for slot, callback in run.callbacks.items():
        own.update({f"{slot}/{name}": value for name, value in callback(run, everyone).items()})
    metrics.update(
        means(
            over_ranks(
                run.accelerator,
                {name: v if isinstance(v, tuple) else (float(v), 1.0) for name, v in own.items()},
            )
        )
    )
    if run.activity is not None:
        run.activity.stepped(run, metrics)
    return metrics


def answered(groups: Sequence[Group]) -> list[Group]:
    """The groups with the policy's own rollouts alone; groups without any (demonstrations, replay) are left
    out."""
    own = [Group(g.prompt, [r for r in g if r.source == "policy"], g.id, g.info, g.untrained) for g in groups]
    return [mine for mine, group in zip(own, groups) if len(mine) or not len(group)]


def over_ranks(accelerator: Accelerator, sums: Sums) -> Sums:
    """The metric sums of all ranks, added up."""
    merged: Sums = {}
    for (part,) in gather(accelerator, [sums]):
        add_sums(merged, part)
    return merged


def describe(sampled: Sequence[Group], trained: Sequence[Group]) -> dict[str, float]:
    """Rewards and lengths of the policy's sampled rollouts, and the amount that was trained on.

    Where none is its own, the lengths are those of all rollouts, and their rewards are `demonstrations/...`:
    they say nothing about the policy.
    """
    written = [rollout for group in sampled for rollout in group]
    own = [rollout for rollout in written if rollout.source == "policy"]
    rollouts = own or written
    tokens = sum(rollout.trained_tokens for group in trained for rollout in group)
    out = {"groups": float(len(trained)), "rollouts": float(sum(map(len, trained))), "tokens": float(tokens)}
    if not rollouts:
        return out
    head = "reward" if own else "demonstrations"
    out[f"{head}/total"] = mean([rollout.reward for rollout in rollouts])
    for slot in sorted({slot for rollout in rollouts for slot in rollout.rewards}):
        out[f"{head}/{slot}"] = mean(
            [rollout.rewards[slot] for rollout in rollouts if slot in rollout.rewards]
        )
    lengths = [rollout.sampled_tokens for rollout in rollouts]
    out |= {
        "length/mean": mean(lengths),
        "length/max": float(max(lengths)),
        "truncated": mean([float(r.truncated) for r in rollouts]),
    }
    out["zero_variance"] = mean([float(len(set(group.rewards)) <= 1) for group in sampled if len(group)])
    return out


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return float(sum(values) / len(values))
