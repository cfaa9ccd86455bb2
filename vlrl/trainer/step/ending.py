"""The end of a step: what was sampled and trained on, over all ranks, and the numbers for the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vlrl.trainer.ranks.collectives import all_groups, gather
from vlrl.trainer.step.objective import Sums, add_sums, means
from vlrl.trainer.views import StepView
from vlrl.types import Group

if TYPE_CHECKING:
    from accelerate import Accelerator


def end_step(view: StepView) -> None:
    """End a step on all ranks: call `end_step` of every plug-in, then metrics and callbacks. Fills
    `Step.metrics`, equal on all ranks."""
    step, accelerator = view.record, view.session.accelerator
    step.trained_groups, _ = all_groups(accelerator, step.groups)
    step.sampled_groups, _ = all_groups(accelerator, step.sampled)
    step.answered_groups = policy_only(step.sampled_groups)
    metrics = step.metrics
    for counts in gather(accelerator, [dict(step.counts)]):
        for name, value in counts[0].items():
            metrics[name] = metrics.get(name, 0.0) + value
    metrics.update(describe(step.sampled_groups, step.trained_groups))
    metrics["reward/errors"] = float(sum(part[0] for part in gather(accelerator, [view.score_counts.errors])))
    for _, plugin in view.current.plugins():
        plugin.end_step(view)
    for slot, metric in view.metrics.items():
        for name, number in metric(step.trained_groups).items():
            metrics[f"{slot}/{name}" if slot != name else name] = float(number)
    own: dict[str, float | tuple[float, float]] = {}
    for _, plugin in view.current.plugins():
        own.update(plugin.metrics())
    view.engine.end_step(view)
    own.update(view.engine.metrics())
    for slot, callback in view.callbacks.items():
        own.update({f"{slot}/{name}": value for name, value in callback(view, step.trained_groups).items()})
    sums = {name: v if isinstance(v, tuple) else (float(v), 1.0) for name, v in own.items()}
    metrics.update(means(over_ranks(accelerator, sums)))
    view.observers.ended(step)


def policy_only(groups: Sequence[Group]) -> list[Group]:
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
    if own:  # demonstrations are not compared with each other
        out["zero_variance"] = mean([float(len(set(group.rewards)) <= 1) for group in sampled if len(group)])
    return out


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return float(sum(values) / len(values))
