"""Observables about which rows are drawn, how hard they are, and what of earlier visits comes back.

`NAMED_OBSERVABLES` are those with an argument: `mean_meta/difficulty`, `rows_of/knights`,
`settled_rows/pass_rate`, `prompts_with/PATTERN`, `advantage_of/PATTERN`.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence

from proof_kit.observables import Record, advantage_of_text, correlation, mean, observable
from proof_kit.rollout_observables import sampled_from
from vlrl.types import Rollout


def accuracy(rollouts: Sequence[Rollout]) -> float:
    """Share of correct rollouts; 0 of nothing."""
    return mean([float(rollout.correct) for rollout in rollouts])


@observable
def repeated_rows(record: Record) -> float:
    """Share of the sampled groups whose row had been sampled before in the phase."""
    ids = [group.row.id for group in record.sampled()]
    return 1 - len(set(ids)) / len(ids) if ids else 0.0


@observable
def repeated_texts(record: Record) -> float:
    """Share of the sampled rollouts with a text that a rollout of the same row had in an earlier step."""
    earlier: dict[str, set[str]] = defaultdict(set)
    values = []
    for step in record.steps:
        values += [
            float(rollout.text in earlier[group.row.id]) for group in step.sampled for rollout in group
        ]
        for group in step.sampled:
            earlier[group.row.id].update(rollout.text for rollout in group)
    return mean(values)


@observable
def accuracy_by_visits(record: Record) -> float:
    """Correlation over rows of the number of visits with the share of correct rollouts: below 0 where hard
    rows are drawn more often."""
    rollouts: dict[str, list[Rollout]] = defaultdict(list)
    visits: dict[str, int] = defaultdict(int)
    for group in record.sampled():
        visits[group.row.id] += 1
        rollouts[group.row.id] += group.rollouts
    return correlation([float(visits[row]) for row in rollouts], [accuracy(own) for own in rollouts.values()])


@observable
def outcome_variance(record: Record) -> float:
    """Mean over the trained groups of p (1 - p), p the share of correct rollouts: 1/4 where half are
    correct."""
    rates = [accuracy(group.rollouts) for group in record.trained()]
    return mean([p * (1 - p) for p in rates])


@observable
def accuracy_spread(record: Record) -> float:
    """Standard deviation over the sampled groups of the share of correct rollouts."""
    rates = [accuracy(group.rollouts) for group in record.sampled()]
    return statistics.pstdev(rates) if rates else 0.0


@observable
def gradient_spread_over_groups(record: Record) -> float:
    """Coefficient of variation over groups of sum |d loss / d log-prob| per unit of sum |advantage|: 0 where
    every group has the same weight."""
    weights = []
    for step in record.steps:
        for group in step.trained:
            size = sum(abs(rollout.advantage) for rollout in group if id(rollout) in step.gradients)
            gradient = sum(abs(value) for rollout in group for value in step.gradients.get(id(rollout), ()))
            weights += [gradient / size] if size else []
    return statistics.pstdev(weights) / mean(weights) if any(weights) else 0.0


@observable
def policy_versions(record: Record) -> float:
    """Number of versions of the policy that sampled the trained rollouts, per step: 1 where each step samples
    with the newest weights."""
    versions = {
        rollout.version if isinstance(rollout.version, int) else max(rollout.version)
        for rollout in record.rollouts()
    }
    return len(versions) / len(record.steps) if record.steps else 0.0


def mean_meta(record: Record, key: str) -> float:
    """Mean of `row.meta[key]` over the sampled groups whose row has that number."""
    values = [group.row.meta.get(key) for group in record.sampled()]
    return mean([float(value) for value in values if isinstance(value, (int, float))])


def rows_of(record: Record, task: str) -> float:
    """Share of the sampled groups whose row is of a task."""
    return mean([float(group.row.task == task) for group in record.sampled()])


def settled_rows(record: Record, key: str) -> float:
    """Share of the sampled groups whose row has 0 or 1 as its rate in `row.meta[key]`: never, or always,
    solved."""
    return mean([float(group.row.meta.get(key) in (0, 1)) for group in record.sampled()])


def prompts_with(record: Record, pattern: str) -> float:
    """Share of the sampled groups in whose prompt the regular expression `pattern` is found."""
    return mean([float(bool(re.search(pattern, group.prompt.text, re.DOTALL))) for group in record.sampled()])


def texts_with(record: Record, pattern: str) -> float:
    """Share of the trained rollouts in whose text the regular expression `pattern` is found."""
    return mean([float(bool(re.search(pattern, rollout.text, re.DOTALL))) for rollout in record.rollouts()])


NAMED_OBSERVABLES: dict[str, Callable[[Record, str], float]] = {
    "advantage_of": advantage_of_text,
    "mean_meta": mean_meta,
    "rows_of": rows_of,
    "settled_rows": settled_rows,
    "prompts_with": prompts_with,
    "texts_with": texts_with,
    "sampled_from": sampled_from,
}
