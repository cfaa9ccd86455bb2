"""Observables of a proof that are no figure of the activity report: functions of the groups that were sampled
and trained.

An observable gets the `Record` of a phase and returns one number. `OBSERVABLES` has them by name.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from vlrl.types import Group, Rollout


@dataclass
class StepRecord:
    """One step: the groups that were sampled (before filters), and those that were trained on. `gradients`:
    see `Activity.gradients`.

    `changed`: share of the policy's weights that the step changed; None where the weights before it are not
    known. `tensors`: see `Activity.tensors`.
    """

    sampled: Sequence[Group]
    trained: Sequence[Group]
    gradients: dict[int, list[float]]
    changed: float | None = None
    tensors: dict[int, dict[str, list[float]]] = field(default_factory=dict)


@dataclass
class Record:
    """The observed steps of one phase."""

    steps: list[StepRecord] = field(default_factory=list)

    def sampled(self) -> Iterator[Group]:
        """All sampled groups that have rollouts."""
        return (group for step in self.steps for group in step.sampled if len(group))

    def trained(self) -> Iterator[Group]:
        """All groups that were trained on."""
        return (group for step in self.steps for group in step.trained if len(group))

    def rollouts(self) -> list[Rollout]:
        """All rollouts that were trained on."""
        return [rollout for group in self.trained() for rollout in group]

    def gradients(self) -> Iterator[tuple[Rollout, list[float]]]:
        """(rollout, d loss / d log-prob per token) of all rollouts that carry gradient."""
        for step in self.steps:
            for group in step.trained:
                for rollout in group:
                    if id(rollout) in step.gradients:
                        yield rollout, step.gradients[id(rollout)]


OBSERVABLES: dict[str, Callable[[Record], float]] = {}


def observable(function: Callable[[Record], float]) -> Callable[[Record], float]:
    """Register a function under its own name."""
    OBSERVABLES[function.__name__] = function
    return function


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return statistics.fmean(values) if values else 0.0


@observable
def mixed_groups(record: Record) -> float:
    """Share of the trained groups with both a correct and a wrong rollout."""
    return mean([float(len({rollout.correct for rollout in group}) == 2) for group in record.trained()])


@observable
def correct_rollouts(record: Record) -> float:
    """Share of the trained rollouts that are correct."""
    return mean([float(rollout.correct) for rollout in record.rollouts()])


@observable
def advantage_of_correct(record: Record) -> float:
    """Mean advantage of the correct rollouts that were trained on."""
    return mean([rollout.advantage for rollout in record.rollouts() if rollout.correct])


@observable
def advantage_of_wrong(record: Record) -> float:
    """Mean advantage of the wrong rollouts that were trained on."""
    return mean([rollout.advantage for rollout in record.rollouts() if not rollout.correct])


@observable
def advantage_of_truncated(record: Record) -> float:
    """Mean advantage of the rollouts that were cut at the token limit."""
    return mean([rollout.advantage for rollout in record.rollouts() if rollout.truncated])


@observable
def trained_tokens(record: Record) -> float:
    """Number of tokens with a gradient other than 0."""
    return float(sum(value != 0 for _, values in record.gradients() for value in values))


@observable
def gradient_of_correct(record: Record) -> float:
    """Mean |d loss / d log-prob| of the tokens of correct rollouts."""
    return mean([abs(value) for rollout, values in record.gradients() if rollout.correct for value in values])


@observable
def gradient_of_wrong(record: Record) -> float:
    """Mean |d loss / d log-prob| of the tokens of wrong rollouts."""
    return mean(
        [abs(value) for rollout, values in record.gradients() if not rollout.correct for value in values]
    )


@observable
def gradient_per_token_by_length(record: Record) -> float:
    """Correlation of a rollout's length with its mean |d loss / d log-prob| per unit of advantage: below 0
    where long answers weigh less."""
    weighted = [(rollout, values) for rollout, values in record.gradients() if rollout.advantage]
    pairs = [
        (len(rollout), mean([abs(v) for v in values]) / abs(rollout.advantage))
        for rollout, values in weighted
    ]
    return correlation([a for a, _ in pairs], [b for _, b in pairs])


@observable
def gradient_spread_in_rollouts(record: Record) -> float:
    """Mean over rollouts of the standard deviation of d loss / d log-prob over tokens, per unit of the mean
    size."""
    shares = [
        statistics.pstdev(values) / mean([abs(v) for v in values])
        for _, values in record.gradients()
        if len(values) > 1 and any(values)
    ]
    return mean(shares)


@observable
def rollouts_per_prompt(record: Record) -> float:
    """Mean number of rollouts in a sampled group."""
    return mean([float(len(group)) for group in record.sampled()])


@observable
def demonstrations(record: Record) -> float:
    """Share of the trained rollouts that the policy did not write."""
    return mean([float(rollout.source != "policy") for rollout in record.rollouts()])


@observable
def trained_rollouts(record: Record) -> float:
    """Number of trained rollouts."""
    return float(len(record.rollouts()))


@observable
def sampled_tokens(record: Record) -> float:
    """Number of sampled tokens."""
    return float(sum(len(rollout) for group in record.sampled() for rollout in group))


@observable
def sampled_likelihood(record: Record) -> float:
    """Mean log-prob (nats) of the trained tokens under the policy that the step started from, without what
    the sampling filtered."""
    return mean([value for rollout in record.rollouts() for value in rollout.signals.get("old_logp", ())])


@observable
def prompt_characters(record: Record) -> float:
    """Mean number of characters in the prompts that were sampled from."""
    return mean([float(len(group.rollouts[0].prompt.text)) for group in record.sampled()])


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Pearson's correlation; 0 where one side is constant."""
    if len(xs) < 2 or len(set(xs)) == 1 or len(set(ys)) == 1:
        return 0.0
    return statistics.correlation(xs, ys)


@observable
def late_gradient(record: Record) -> float:
    """Mean |d loss / d log-prob| of the second half of a rollout's tokens over that of the first half."""
    late, early = 0.0, 0.0
    for _, values in record.gradients():
        half = len(values) // 2
        early += sum(abs(value) for value in values[:half]) / max(half, 1)
        late += sum(abs(value) for value in values[half:]) / max(len(values) - half, 1)
    return late / early if early else 0.0


@observable
def group_mean_advantage(record: Record) -> float:
    """Mean over groups of |mean advantage|: 0 where the baseline is the group's own mean."""
    return mean([abs(mean([rollout.advantage for rollout in group])) for group in record.trained()])


@observable
def group_length_weighted_advantage(record: Record) -> float:
    """Mean over groups of |sum length A| / sum length: 0 where the baseline is weighted by length."""
    values = []
    for group in record.trained():
        values.append(abs(sum(len(rollout) * rollout.advantage for rollout in group)) / sum(map(len, group)))
    return mean(values)


@observable
def advantage_size_over_groups(record: Record) -> float:
    """Coefficient of variation over groups of the root mean square advantage: 0 where every group is scaled
    to the same size."""
    sizes = [mean([rollout.advantage**2 for rollout in group]) ** 0.5 for group in record.trained()]
    sizes = [size for size in sizes if size > 0]
    return statistics.pstdev(sizes) / mean(sizes) if sizes else 0.0


@observable
def gradient_at_high_covariance(record: Record) -> float:
    """Mean |d loss / d log-prob| of the tenth of the tokens with the highest covariance, (logp - mean) (A -
    mean), over the mean of all tokens."""
    tokens = [
        (logp, rollout.advantage, abs(g))
        for rollout, values in record.gradients()
        for logp, g in zip(rollout.logp, values)
    ]
    if not tokens:
        return 0.0
    logp, advantage = mean([token[0] for token in tokens]), mean([token[1] for token in tokens])
    ranked = sorted(tokens, key=lambda token: (token[0] - logp) * (token[1] - advantage), reverse=True)
    top = ranked[: max(1, len(ranked) // 10)]
    overall = mean([token[2] for token in tokens])
    return mean([token[2] for token in top]) / overall if overall else 0.0


@observable
def gradient_by_likelihood(record: Record) -> float:
    """Correlation over tokens of the log-prob when they were sampled with |d loss / d log-prob| per unit of
    the rollout's mean: below 0 where unlikely tokens weigh more."""
    pairs = [
        (logp, abs(value) / size)
        for rollout, values in record.gradients()
        if (size := mean([abs(value) for value in values]))
        for logp, value in zip(rollout.logp, values)
    ]
    return correlation([a for a, _ in pairs], [b for _, b in pairs])


@observable
def advantage_by_length(record: Record) -> float:
    """Correlation of a rollout's length with its advantage, mean over groups."""
    return mean(
        [
            correlation([float(len(rollout)) for rollout in group], [rollout.advantage for rollout in group])
            for group in record.trained()
        ]
    )


@observable
def advantage_by_likelihood(record: Record) -> float:
    """Correlation of a rollout's mean log-prob when it was sampled with its advantage, mean over groups."""
    groups = [[rollout for rollout in group if rollout.logp] for group in record.trained()]
    return mean(
        [
            correlation([mean(rollout.logp) for rollout in group], [rollout.advantage for rollout in group])
            for group in groups
        ]
    )


def advantage_of_text(record: Record, pattern: str) -> float:
    """Mean advantage of the trained rollouts in whose text the regular expression `pattern` is found, less
    that of the others; 0 without either."""
    found = [rollout for rollout in record.rollouts() if re.search(pattern, rollout.text, re.DOTALL)]
    others = [rollout for rollout in record.rollouts() if not re.search(pattern, rollout.text, re.DOTALL)]
    if not found or not others:
        return 0.0
    return mean([rollout.advantage for rollout in found]) - mean([rollout.advantage for rollout in others])


@observable
def advantage_by_novelty(record: Record) -> float:
    """Correlation over a group's correct rollouts of the share of words that no other rollout has with the
    advantage, mean over groups."""
    values = []
    for group in record.trained():
        words = [set(rollout.text.split()) for rollout in group]
        shares = [
            len(own - set().union(*(other for j, other in enumerate(words) if j != i))) / max(len(own), 1)
            for i, own in enumerate(words)
        ]
        pairs = [(share, rollout.advantage) for share, rollout in zip(shares, group) if rollout.correct]
        values.append(correlation([a for a, _ in pairs], [b for _, b in pairs]))
    return mean(values)


@observable
def advantage_of_correct_by_length(record: Record) -> float:
    """Correlation over a group's correct rollouts of length with advantage, mean over groups."""
    groups = [[rollout for rollout in group if rollout.correct] for group in record.trained()]
    return mean(
        [
            correlation([float(len(rollout)) for rollout in group], [rollout.advantage for rollout in group])
            for group in groups
        ]
    )


@observable
def advantage_of_demonstrations(record: Record) -> float:
    """Mean advantage of the trained rollouts that the policy did not write."""
    return mean([rollout.advantage for rollout in record.rollouts() if rollout.source != "policy"])


@observable
def gradient_of_demonstrations(record: Record) -> float:
    """Mean |d loss / d log-prob| of the tokens that the policy did not write, over that of its own tokens."""
    own: list[float] = []
    others: list[float] = []
    for rollout, values in record.gradients():
        (own if rollout.source == "policy" else others).extend(abs(value) for value in values)
    return mean(others) / mean(own) if any(own) else 0.0


@observable
def likelihood(record: Record) -> float:
    """Mean log-prob (nats per token) of the sampled tokens, when they were sampled."""
    return mean([logp for group in record.sampled() for rollout in group for logp in rollout.logp])


@observable
def trained_length_gap(record: Record) -> float:
    """Mean number of tokens of the wrong rollouts that carry gradient, less that of the correct ones."""
    lengths: dict[bool, list[float]] = {True: [], False: []}
    for rollout, values in record.gradients():
        if any(values):
            lengths[rollout.correct].append(float(len(rollout)))
    return mean(lengths[False]) - mean(lengths[True])


@observable
def changed_weights(record: Record) -> float:
    """Mean over steps of the share of the policy's weights that the step changed; the phase's first step does
    not count."""
    return mean([step.changed for step in record.steps if step.changed is not None])


@observable
def advantage_size_by_likelihood(record: Record) -> float:
    """Correlation of a rollout's mean log-prob when it was sampled with its |advantage|, mean over groups."""
    groups = [[rollout for rollout in group if rollout.logp] for group in record.trained()]
    return mean(
        [
            correlation(
                [mean(rollout.logp) for rollout in group], [abs(rollout.advantage) for rollout in group]
            )
            for group in groups
        ]
    )
