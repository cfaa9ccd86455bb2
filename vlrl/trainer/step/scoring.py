"""Scoring: every reward slot that applies to a row scores its rollouts, and one of them decides the outcome.

A rollout on which a reward raises is dropped and counted, as is an episode whose environment fails
(`vlrl/trainer/step/episodes.py`); a failed verifier never counts as a score. What is dropped leaves its
group, so that neither mean, std nor loss sees it. Where the machine has no memory, disk or file handles left,
the reward is asked again when all others are done; if it fails again, the run ends.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vlrl.plugins.scoring import NoScore
from vlrl.plugins.stages import Reward
from vlrl.services.failures import RunFailure, of_the_machine, out_of_memory, user_place
from vlrl.services.run_sync import run_sync
from vlrl.trainer.phase import PhasePlan, applies
from vlrl.trainer.step.step import ScoreCounts
from vlrl.types import Group, Rollout

Failures = list[tuple[Rollout, str, BaseException]]
Retries = list[tuple[Group, str, Reward]]
OnFailure = Callable[[Group, str, BaseException], None]
FAULTS = (Exception, SystemExit, asyncio.CancelledError)  # what a verifier may raise without ending the run


class RewardError(RunFailure):
    """Too many rollouts could not be scored: the verifier is broken, not the policy."""

    exit_code = 70


def score(
    groups: Sequence[Group], phase: PhasePlan, counts: ScoreCounts, warn: Callable[[str], None], moment: str
) -> None:
    """Fill `rollout.rewards` (raw, by slot) and `rollout.reward` (weighted sum). Rollouts that a reward
    raised on leave their group.

    Scores of rewards that score rollouts one by one are kept (a rollout strategy may have scored before);
    rewards that compare siblings score anew. Raises RewardError once more than `error_limit` of all rollouts
    of the run so far (and at least 3) could not be scored.
    """
    new = [not rollout.rewards for group in groups for rollout in group]
    failures = run_rewards(groups, phase.rewards, f"{moment}, ")
    failed = {id(rollout) for rollout, _, _ in failures}
    counts.add(scored=sum(new))
    for group in groups:
        group.rollouts = [rollout for rollout in group if id(rollout) not in failed]
        for rollout in group:
            rollout.reward = sum(
                phase.rewards[slot].weight * value for slot, value in rollout.rewards.items()
            )
            set_outcome(rollout, phase)
    if failures:
        rollout, slot, error = failures[0]
        what = f"reward {slot!r} raised on row {rollout.row.id!r}"
        drop(len(failed), what, error, counts, phase.settings.error_limit, warn)


def drop(
    count: int,
    what: str,
    error: BaseException,
    counts: ScoreCounts,
    limit: float,
    warn: Callable[[str], None],
    pending: int = 0,
) -> None:
    """Count and report rollouts without a verdict. Raises RewardError above the limit.

    `pending` rollouts have begun and are not scored yet: failures often come first, and their share is one of
    all.
    """
    counts.add(errors=count)
    message = f"{what}: {type(error).__name__}: {error}"
    warn(f"{count} rollouts could not be scored and were dropped; the first: {message}")
    known = counts.scored + pending
    if counts.errors >= 3 and counts.errors > limit * known:
        raise RewardError(
            f"{counts.errors} of {known} rollouts could not be scored (error_limit {limit:g}). {message}"
            f"{f' ({place})' if (place := user_place(error)) else ''}"
        ) from error


def run_rewards(groups: Sequence[Group], rewards: Mapping[str, Reward], where: str = "") -> Failures:
    """Fill `rollout.rewards` with every reward slot that applies. Returns (rollout, slot, exception) for each
    reward that raised.

    Raises OutOfMemoryError, with `where` at its beginning, or OSError, where the machine has nothing left, at
    the second attempt.
    """
    failures: Failures = []
    run_sync(_score_all(groups, rewards, failures, where))
    return failures


def set_outcome(rollout: Rollout, phase: PhasePlan) -> None:
    """`rollout.outcome` is the raw score of the row's outcome slot, `rollout.correct` what that reward's
    `correct` says of it.

    Where the outcome slot has not scored the rollout, the next of `PhasePlan.outcome_slots` that has decides;
    without any, outcome is None.
    """
    slot = next((slot for slot in phase.outcome_slots(rollout.row) if slot in rollout.rewards), None)
    rollout.outcome = None if slot is None else rollout.rewards[slot]
    rollout.correct = slot is not None and phase.rewards[slot].correct(rollout, rollout.rewards[slot])


async def _score_all(
    groups: Sequence[Group], rewards: Mapping[str, Reward], failures: Failures, where: str
) -> None:
    retries: Retries = []
    for slot, reward in rewards.items():
        try:
            reward.prepare(
                [group for group in groups if len(group) and applies(slot, reward.tasks, group.row)]
            )
        except FAULTS:  # scoring meets the same fault again, and counts it for the rollouts that it concerns
            continue

    def on_failure(group: Group, slot: str, error: BaseException) -> None:
        if isinstance(error, RunFailure):
            raise error
        if of_the_machine(error):
            retries.append((group, slot, rewards[slot]))
        else:
            failures.extend((rollout, slot, error) for rollout in group)

    def on_second_failure(group: Group, slot: str, error: BaseException) -> None:
        if of_the_machine(error):
            raise (
                out_of_memory(error, f"{where}reward {slot!r} on row {group.row.id!r}, asked twice") or error
            )
        on_failure(group, slot, error)

    await asyncio.gather(
        *(
            _score_slot(group, slot, reward, on_failure)
            for group in groups
            for slot, reward in rewards.items()
        )
    )
    for group, slot, reward in retries:
        gc.collect()
        await _score_slot(group, slot, reward, on_second_failure)


async def _score_slot(group: Group, slot: str, reward: Reward, on_failure: OnFailure) -> None:
    if not len(group) or not applies(slot, reward.tasks, group.row):
        return
    if type(reward).score_group is not Reward.score_group:
        try:
            values: Any = reward.score_group(group)
            values = await values if inspect.isawaitable(values) else values
            values = [await value if inspect.isawaitable(value) else value for value in values]
            scores = [value if isinstance(value, NoScore) else _number(value) for value in values]
            assert len(scores) == len(group), f"{len(scores)} scores for {len(group)} rollouts"
        except FAULTS as error:  # any exception is the verifier's failure, not the policy's
            on_failure(group, slot, error)
            return
        for rollout, value in zip(group, scores):
            if isinstance(value, NoScore):
                on_failure(Group(rollout.prompt, [rollout]), slot, value)
            else:
                rollout.rewards[slot] = value
        return
    await asyncio.gather(*(_score_one(rollout, slot, reward, on_failure) for rollout in group))


async def _score_one(rollout: Rollout, slot: str, reward: Reward, on_failure: OnFailure) -> None:
    if slot in rollout.rewards:
        return
    try:
        value: Any = reward(rollout)
        rollout.rewards[slot] = _number(await value if inspect.isawaitable(value) else value)
    except FAULTS as error:  # as above
        on_failure(Group(rollout.prompt, [rollout]), slot, error)


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"a reward must be a finite number, got {value!r}")
    return number
