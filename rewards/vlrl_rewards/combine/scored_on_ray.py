"""A reward that is computed by workers on a Ray cluster."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.capabilities import carry_annotations
from vlrl.plugins.contexts import StageContext
from vlrl.plugins.registry import ConfigError, build, register
from vlrl.plugins.stages import GroupScores, Reward, State, transient
from vlrl.services.http import ServiceError
from vlrl.services.ray_cluster import connect
from vlrl.services.run_sync import run_sync
from vlrl.types import Group, Rollout
from vlrl_rewards.combine.nested import OverReward, note_correct, number


class RewardWorker:
    """The actor: a reward of its own, which scores whole groups."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.reward = build(Reward, dict(spec), "rewards.scored_on_ray.of")

    def score(self, group: Group) -> tuple[list[Any], list[dict[str, Any]], list[bool]]:
        """Scores, what the reward has noted on each rollout, and whether each is correct."""
        found = run_sync(_scores(self.reward, group))
        correct = [
            not isinstance(score, Exception) and self.reward.correct(rollout, score)
            for rollout, score in zip(group, found, strict=True)
        ]
        return found, [rollout.info for rollout in group], correct


async def _scores(reward: Reward, group: Group) -> list[Any]:
    scores = reward.score_group(group)
    if inspect.isawaitable(scores):
        scores = await scores
    return [await score if inspect.isawaitable(score) else score for score in scores]


@dataclass
class ScoredOnRayState(State):
    """The actors, in the order in which they are asked."""

    workers: Any = transient()
    all: list[Any] = transient(factory=list)


@register("scored_on_ray")
@dataclass(frozen=True, kw_only=True)
class ScoredOnRay(OverReward):
    """The reward `of`, computed by `workers` processes that Ray places on its cluster: s = of(rollout).

        rewards: {accuracy: {name: scored_on_ray, of: {name: code}, workers: 8, weight: 1.0}}

    vlrl original; scoring by remote workers as in OpenRLHF, arXiv:2405.11143. A group is one call; groups go
    to the workers in turn and are scored at the same time. Scores, notes and verdicts are those of `of` in
    this process. Edge: a worker that dies is started again by Ray, and its group is scored once more; where
    that fails too, or no cluster answers, ServiceError: the rollouts leave their group. Rewards that need the
    run (a judge's service, the policy) are refused. Nodes need the package with its rewards.

    Attributes:
        workers: Actors of each training process, one CPU each unless `cpus` says otherwise.
        cpus: CPUs that Ray sets aside for a worker.
        address: Of the cluster; "": that of `vlrl train --ray`, else "auto".
    """

    state_class = ScoredOnRayState
    workers: int = 2
    cpus: float = 1.0
    address: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers < 1 or self.cpus < 0:
            raise ValueError(f"workers is {self.workers}, cpus {self.cpus}; at least 1 and at least 0")
        if type(self.inner).setup is not Reward.setup:
            raise ConfigError(
                f"rewards: {self.inner.name!r} needs the run (a model or a service) and cannot be computed "
                "by a worker on Ray; give it a slot of its own without scored_on_ray"
            )

    @property
    def inner_rewards(self) -> tuple[Reward, ...]:
        return ()  # the worker has it

    def setup(self, run: StageContext) -> None:
        ray = connect(self.address)
        actor = ray.remote(RewardWorker).options(
            num_cpus=self.cpus, max_restarts=-1, max_task_retries=1, scheduling_strategy="SPREAD"
        )
        self.state.all = [actor.remote(dict(self.of)) for _ in range(self.workers)]
        self.state.workers = itertools.cycle(self.state.all)

    def __call__(self, rollout: Rollout) -> float:
        return number(self.inner, rollout)

    async def score_group(self, group: Group) -> GroupScores:
        if self.state.workers is None:  # scored outside of a run: here
            return await _scores(self.inner, group)
        import ray

        try:
            answer = next(self.state.workers).score.remote(group)
            scores, notes, correct = await asyncio.wrap_future(answer.future())
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None  # what the reward raised
        except ray.exceptions.RayError as error:
            raise ServiceError(f"the worker of reward {self.inner.name!r} on Ray: {error}") from None
        for rollout, noted, right in zip(group, notes, correct, strict=True):
            carry_annotations(rollout, noted)
            note_correct(self, rollout, right)
        found: GroupScores = scores
        return found
