"""Observables about how the rollouts of a prompt are sampled: their number, their prompts, the tokens that
they share, their likelihood, and how advantages change along them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from itertools import combinations, takewhile

import numpy as np

from proof_kit.observables import Record, correlation, mean, observable
from vlrl.methods.common.step_scores import STEP_SCORES
from vlrl.methods.core.reward_model import STEP_LABELS
from vlrl.types import Media, Rollout


@observable
def rollouts_by_accuracy(record: Record) -> float:
    """Correlation over the sampled groups of the share of correct rollouts with the number of rollouts: below
    0 where hard prompts get more."""
    groups = list(record.sampled())
    return correlation(
        [mean([float(rollout.correct) for rollout in group]) for group in groups],
        [float(len(group)) for group in groups],
    )


@observable
def shared_tokens(record: Record) -> float:
    """Mean number of first tokens that a sampled rollout has in common with the earlier rollout of its group
    that has most of them."""
    values = []
    for group in record.sampled():
        for place, rollout in enumerate(group):
            common = [
                sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(rollout.ids, other.ids)))
                for other in group.rollouts[:place]
            ]
            values += [float(max(common))] if common else []
    return mean(values)


@observable
def overlap_of_halves(record: Record) -> float:
    """Mean share of the tokens of a group's second half of rollouts that some rollout of its first half
    has."""
    values = []
    for group in record.sampled():
        half = len(group) - len(group) // 2
        known = {token for rollout in group.rollouts[:half] for token in rollout.ids}
        values += [
            mean([float(token in known) for token in rollout.ids]) for rollout in group.rollouts[half:]
        ]
    return mean(values)


@observable
def late_likelihood(record: Record) -> float:
    """Mean log-prob (nats) of the second half of a sampled rollout's tokens less that of the first half, when
    they were sampled."""
    halves = [
        (rollout.logp, len(rollout.logp) // 2)
        for group in record.sampled()
        for rollout in group
        if len(rollout.logp) > 1
    ]
    return mean([mean(logp[half:]) - mean(logp[:half]) for logp, half in halves])


@observable
def advantage_in_solved_groups(record: Record) -> float:
    """Mean |advantage| of the rollouts of trained groups in which all are correct."""
    solved = [group for group in record.trained() if all(rollout.correct for rollout in group)]
    return mean([abs(rollout.advantage) for group in solved for rollout in group])


@observable
def advantage_spread_of_correct(record: Record) -> float:
    """Mean over the trained groups of the standard deviation of the advantages of their correct rollouts."""
    groups = [[rollout.advantage for rollout in group if rollout.correct] for group in record.trained()]
    return mean([statistics.pstdev(advantages) for advantages in groups if len(advantages) > 1])


@observable
def given_characters(record: Record) -> float:
    """Mean number of characters at the beginning of an answer that the sampled rollouts' prompts give."""
    return mean([float(len(rollout.prompt.prefix)) for group in record.sampled() for rollout in group])


@observable
def observation_tokens(record: Record) -> float:
    """Share of the tokens of the trained rollouts that the policy did not sample: what tools and environments
    said."""
    sampled = [mine for rollout in record.rollouts() for mine in rollout.sampled]
    return mean([float(not mine) for mine in sampled])


def late_less_early(rollouts: Iterable[Rollout]) -> float:
    """Mean over rollouts of the mean advantage of the second half of the tokens less that of the first."""
    values = []
    for rollout in rollouts:
        half = len(rollout.advantages) // 2
        if half:
            values.append(mean(rollout.advantages[half:]) - mean(rollout.advantages[:half]))
    return mean(values)


@observable
def late_advantage(record: Record) -> float:
    """Mean advantage of the second half of a rollout's tokens less that of the first half."""
    return late_less_early(record.rollouts())


@observable
def late_advantage_of_correct(record: Record) -> float:
    """`late_advantage` of the correct rollouts: above 0 where the steps that decide earn most."""
    return late_less_early(rollout for rollout in record.rollouts() if rollout.correct)


@observable
def credit_of_worst_step(record: Record) -> float:
    """Correlation over rollouts of the score of the worst step with the mean advantage of the tokens up to
    its end less that of the tokens behind it."""
    scores, gains = [], []
    for rollout in record.rollouts():
        end, score = min(STEP_SCORES.get(rollout, []), key=lambda step: step[1], default=(0, 0.0))
        if 0 < end < len(rollout):
            scores.append(score)
            gains.append(mean(rollout.advantages[:end]) - mean(rollout.advantages[end:]))
    return correlation(scores, gains)


def sampled_from(record: Record, pattern: str) -> float:
    """Share of the sampled rollouts that were sampled from a prompt in which the regular expression `pattern`
    is found."""
    rollouts = [rollout for group in record.sampled() for rollout in group]
    return mean([float(bool(re.search(pattern, rollout.prompt.text, re.DOTALL))) for rollout in rollouts])


def picture_spread(images: Sequence[Media]) -> float:
    """Mean absolute difference of grey levels (0 to 255) over the pairs of pictures, at 16 by 16 pixels."""
    small = [np.asarray(image.load().convert("L").resize((16, 16)), dtype=float) for image in images]
    return mean([float(np.abs(a - b).mean()) for a, b in combinations(small, 2)])


@observable
def trained_view_spread(record: Record) -> float:
    """How much more the pictures of a prompt differ from each other where it is trained on than where it was
    sampled: above 0 where the update sees stronger augmentations."""
    prompts = [rollout.prompt for group in record.trained() for rollout in group]
    return mean(
        [
            picture_spread((prompt.train or prompt).images) - picture_spread(prompt.images)
            for prompt in prompts
        ]
    )


@observable
def likelihood_of_later(record: Record) -> float:
    """Mean over the trained groups of the log-prob (nats per token, under the policy that is trained) of the
    later half of the rollouts, less that of the earlier half: below 0 where what is sampled later is less
    likely."""
    values = []
    for step in record.steps:
        for group in step.trained:
            seen = [step.tensors[id(rollout)]["logp"] for rollout in group if id(rollout) in step.tensors]
            halves = seen[: -(len(seen) // 2)], seen[-(len(seen) // 2) :]
            if len(seen) > 1:
                earlier, later = (mean([value for row in half for value in row]) for half in halves)
                values.append(later - earlier)
    return mean(values)


@observable
def value_of_right_steps(record: Record) -> float:
    """Mean label of the steps of the correct rollouts that a process reward model was trained on, less that
    of the wrong ones."""
    labels: dict[bool, list[float]] = {True: [], False: []}
    for rollout in record.rollouts():
        labels[rollout.correct] += [value for _, value in STEP_LABELS.get(rollout, [])]
    return mean(labels[True]) - mean(labels[False])
