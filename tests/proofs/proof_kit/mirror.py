"""Plug-ins that decide by right and wrong, with the two swapped: what they do for hard prompts or wrong
rollouts they do for easy prompts or correct rollouts.

While such a plug-in runs, `correct` of every rollout that it sees is negated, its `outcome` o becomes 1 - o
and its `reward` r becomes min + max - r of its group; afterwards they are as they were.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from vlrl.methods.core.prompt_sampler import SCORES, ByHistory, Levels, ShuffleWithHistory
from vlrl.plugins.stages import RolloutStrategy
from vlrl.types import Group, Rollout, Row, Sampling

TRUTH = "proof_truth"  # in Rollout.info, while mirrored


def members(groups: Iterable[Group]) -> list[Rollout]:
    """All rollouts of the groups once, with those that are set aside."""
    found = {id(rollout): rollout for group in groups for rollout in [*group.rollouts, *group.untrained]}
    return list(found.values())


def turn_round(groups: Iterable[Group]) -> None:
    """Swap right and wrong of those rollouts that are not swapped yet."""
    for group in groups:
        own = [r for r in [*group.rollouts, *group.untrained] if TRUTH not in r.info]
        ends = min(group.rewards, default=0.0) + max(group.rewards, default=0.0)
        for rollout in own:
            rollout.info[TRUTH] = rollout.correct, rollout.outcome, rollout.reward
        for rollout in own:
            rollout.correct, rollout.reward = not rollout.correct, ends - rollout.reward
            rollout.outcome = None if rollout.outcome is None else 1.0 - rollout.outcome


def turn_back(groups: Iterable[Group]) -> None:
    """Undo `turn_round`."""
    for rollout in members(groups):
        if TRUTH in rollout.info:
            rollout.correct, rollout.outcome, rollout.reward = rollout.info.pop(TRUTH)


@contextmanager
def mirrored(groups: Sequence[Group]) -> Iterator[None]:
    """Right and wrong swapped for a while."""
    turn_round(groups)
    try:
        yield
    finally:
        turn_back(groups)


class MirroredSampling:
    """The context of a rollout strategy, whose `score` swaps right and wrong."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)

    def score(self, groups: Sequence[Group]) -> None:
        """Score, then swap."""
        turn_back(groups)
        self.run.score(groups)
        turn_round(groups)


def strategy(cls: Any, plain: Any) -> dict[str, Any]:
    """A rollout strategy that sees right and wrong swapped."""

    def call(self: Any, prompts: Any, counts: Any, run: Any) -> list[Group]:
        groups = cls.__call__(self, prompts, counts, MirroredSampling(run))
        turn_back(groups)
        return groups

    return {"__call__": call, "end_step": _end_step(cls)}


def replay(cls: Any, plain: Any) -> dict[str, Any]:
    """A replay buffer that sees right and wrong swapped."""

    def call(self: Any, groups: Any) -> list[Group]:
        turn_round(groups)
        after = cls.__call__(self, groups)
        turn_back([*groups, *after])
        return after

    return {"__call__": call, "end_step": _end_step(cls)}


def sampler(cls: Any, plain: Any) -> dict[str, Any]:
    """A prompt sampler that learns from right and wrong swapped; one that ranks rows by their past takes the
    last ones first, one that has levels goes through them backwards, one that only records does what it
    did."""
    if cls is ByHistory:

        def call(self: Any, n: int) -> list[Row]:
            with negated_scores():
                return cls.__call__(self, n)

        return {"__call__": call}
    if cls is Levels:

        def setup(self: Any, run: Any) -> None:
            cls.setup(self, run)
            self.state.mixtures.reverse()

        return {"setup": setup}
    return {} if cls is ShuffleWithHistory else {"end_step": _end_step(cls)}


@contextmanager
def negated_scores() -> Iterator[None]:
    """The scores s of `by_history` become min s + max s - s for a while."""
    before = dict(SCORES)

    def turned(score: Any) -> Any:
        def call(series: Any) -> dict[str, float]:
            own = score(series)
            ends = min(own.values(), default=0.0) + max(own.values(), default=0.0)
            return {row: ends - value for row, value in own.items()}

        return call

    SCORES.update({name: turned(score) for name, score in before.items()})
    try:
        yield
    finally:
        SCORES.update(before)


def callback(cls: Any, plain: Any) -> dict[str, Any]:
    """A callback that sees right and wrong swapped."""

    def call(self: Any, run: Any, groups: Any) -> Any:
        with mirrored([*groups, *run.sampled_groups]):
            return cls.__call__(self, run, groups)

    return {"__call__": call, "end_step": _end_step(cls)}


def _end_step(cls: Any) -> Any:
    def end_step(self: Any, run: Any) -> None:
        with mirrored([*run.sampled_groups, *run.trained_groups, *run.groups]):
            cls.end_step(self, run)

    return end_step


# --- other orders -------------------------------------------------------------------------------------------


def by_low(cls: Any, measure: str) -> dict[str, Any]:
    """A plug-in that ranks by a function of its module (an entropy, a spread), which is negated while it
    runs; {} where the module has no such function."""
    module = sys.modules[cls.__module__]
    if not callable(getattr(module, measure, None)):
        return {}

    def call(self: Any, *inputs: Any) -> Any:
        own = getattr(module, measure)
        setattr(module, measure, lambda *x: -own(*x))
        try:
            return cls.__call__(self, *inputs)
        finally:
            setattr(module, measure, own)

    return {"__call__": call}


def order_of_temperatures(cls: Any) -> dict[str, Any]:
    """A sampling policy whose temperatures by position come in the other order."""

    def call(self: Any, prompt: Any, attempt: int) -> Sampling:
        own = cls.__call__(self, prompt, attempt)
        if isinstance(own.temperature, (int, float)):
            return own
        starts, values = zip(*own.temperature)
        return replace(own, temperature=tuple(zip(starts, values[::-1])))

    return {"__call__": call}


def complement(cls: Any) -> dict[str, Any]:
    """A rollout strategy whose sampled tokens are trained on where it leaves them out, and the other way
    round."""

    def call(self: Any, *inputs: Any) -> list[Group]:
        groups = cls.__call__(self, *inputs)
        for rollout in members(groups):
            if rollout.sampled_mask is not None:
                pairs = zip(rollout.sampled_mask, rollout.trained_mask, strict=True)
                rollout.loss_mask = [mine and not kept for mine, kept in pairs]
        return groups

    return {"__call__": call}


class Backwards:
    """A context of a phase whose steps are counted from the last to the first."""

    def __init__(self, run: Any) -> None:
        self.backwards = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backwards, name)

    @property
    def phase_step(self) -> int:
        return self.backwards.settings.steps - 1 - self.backwards.phase_step


def backwards(cls: Any) -> dict[str, Any]:
    """A plug-in whose schedule runs backwards."""

    def setup(self: Any, run: Any) -> None:
        cls.setup(self, Backwards(run))

    methods: dict[str, Any] = {"setup": setup}
    if issubclass(cls, RolloutStrategy):

        def call(self: Any, prompts: Any, counts: Any, run: Any) -> list[Group]:
            return cls.__call__(self, prompts, counts, Backwards(run))

        methods["__call__"] = call
    return methods
