"""Held-out accuracy during training: one greedy completion per row, scored by the run's own rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlrl.types import Group, Prompt, Request, Rollout, Row, Sampling

if TYPE_CHECKING:
    from vlrl.trainer.run import Run


def greedy(run: Run, prompt: Prompt) -> Sampling:
    """The run's own caps and stops, without randomness."""
    return replace(run.sampling(prompt, 0), temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, top_logprobs=0)


def primary_slot(rollout: Rollout, rewards: Mapping[str, Any]) -> str | None:
    """The first slot with a weight that scored this rollout; None if none did (its verifier failed)."""
    weighted = [slot for slot, reward in rewards.items() if getattr(reward, "weight", 1.0) > 0]
    return next((slot for slot in weighted if slot in rollout.rewards), None)


def generate(run: Run, rows: Sequence[tuple[str, int, Row]]) -> list[Group]:
    """One group of one greedy rollout per (task, index, row), in the order of `rows`."""
    requests = []
    for place, (_, _, row) in enumerate(rows):
        prompt = run.prompt_template(row)
        requests.append(Request(prompt=prompt, sampling=greedy(run, prompt), n=1, seed=run.seed, tag=place))
    done = {completion.request.tag: completion for completion in run.engine.generate(requests)}
    groups = []
    for place, request in enumerate(requests):
        if place not in done:
            raise RuntimeError(f"engine {run.engine.name!r} returned no completion for held-out row {request.prompt.row.id!r}")
        rollout = run.make_rollout(done[place])
        groups.append(Group(prompt=request.prompt, rollouts=[rollout], id=f"heldout-{place}"))
    return groups


def accuracy(run: Run) -> dict[str, float]:
    """`evaluate` on all held-out rows of a run; nothing where it has none. All ranks call it."""
    from vlrl.trainer.data import heldout_by_task

    rows = heldout_by_task(run)
    with run.policy.gather_params():
        return evaluate(run, rows) if rows else {}


def evaluate(run: Run, rows_by_task: Mapping[str, Sequence[Row]]) -> dict[str, float]:
    """{task: mean of its primary reward} over held-out rows, greedily, one completion per row.

    The primary reward of a row is the first weighted slot that applies to it. A rollout whose verifier failed counts as 0.
    With several processes each takes every n-th row and all of them return the same numbers. A task without rows is left out.
    """
    from vlrl.trainer.loop import score

    items = [(task, i, row) for task, rows in rows_by_task.items() for i, row in enumerate(rows)]
    rank, world = _rank(run)
    mine = items[rank::world]
    groups = generate(run, mine)
    rollouts = [group.rollouts[0] for group in groups]  # kept aside: scoring may drop a rollout whose verifier failed
    score(groups, run)
    values = []
    for (task, i, _), rollout in zip(mine, rollouts, strict=True):
        slot = primary_slot(rollout, run.rewards)
        values.append((task, i, float(rollout.rewards[slot]) if slot is not None else 0.0))
    return _means(_gathered(values, world), list(rows_by_task))


def _rank(run: Run) -> tuple[int, int]:
    accelerator = getattr(run, "accelerator", None)
    return (0, 1) if accelerator is None else (accelerator.process_index, accelerator.num_processes)


def _gathered(values: list[tuple[str, int, float]], world: int) -> list[tuple[str, int, float]]:
    if world == 1:
        return values
    from accelerate.utils import gather_object

    return sorted(gather_object(values))


def _means(values: Sequence[tuple[str, int, float]], tasks: Sequence[str]) -> dict[str, float]:
    out = {}
    for task in tasks:
        scores = [value for name, _, value in values if name == task]
        if scores:
            out[task] = sum(scores) / len(scores)
    return out
