"""An environment whose episodes are played by workers on a Ray cluster."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.episodes import Action, EnvironmentFailure, Episode, Observation
from vlrl.plugins.registry import ConfigError, build, register
from vlrl.plugins.stages import Environment, State, transient
from vlrl.services.http import ServiceError
from vlrl.services.ray_cluster import connect
from vlrl.types import Row


class EnvironmentWorker:
    """The actor: an environment of its own, and its episodes by number."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.environment = build(Environment, dict(spec), "environment.of")
        self.episodes: dict[int, Episode] = {}

    def reset(self, number: int, row: Row, seed: int) -> Observation:
        """Begin an episode."""
        self.episodes[number] = self.environment.episode()
        return self.episodes[number].reset(row, seed)

    def step(self, number: int, action: Action) -> Observation:
        """The answer to a turn."""
        if number not in self.episodes:
            raise EnvironmentFailure("the worker on Ray that the episode began on is gone")
        return self.episodes[number].step(action)

    def close(self, number: int) -> None:
        """End an episode, also one that was never reset."""
        if episode := self.episodes.pop(number, None):
            episode.close()


@dataclass
class PlayedOnRayState(State):
    """The actors in the order in which they are asked, and the number of the next episode."""

    workers: list[Any] = transient(factory=list)
    numbers: Any = transient(factory=itertools.count)
    lock: Any = transient(factory=threading.Lock)


@register("played_on_ray")
@dataclass(frozen=True, kw_only=True)
class PlayedOnRay(Environment):
    """The environment `of`, played by `workers` processes that Ray places on its cluster.

        environment: {name: played_on_ray, of: {name: gymnasium, id: ...}, workers: 8}

    vlrl original; environments as remote workers as in OpenRLHF, arXiv:2405.11143. Episodes go to the workers
    in turn and stay there. Observations are those of `of` in this process. Edge: a worker that dies raises
    EnvironmentFailure in its episodes, which leave their groups, and is started again by Ray. Environments
    that need the run are refused. Episodes of a worker are not copied for branches: those repeat the actions.

    Attributes:
        of: The environment's config.
        workers: Actors of each training process.
        cpus: CPUs that Ray sets aside for a worker.
        address: Of the cluster; "": that of `vlrl train --ray`, else "auto".
    """

    state_class = PlayedOnRayState
    of: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 2
    cpus: float = 1.0
    address: str = ""

    def __post_init__(self) -> None:
        if self.workers < 1 or self.cpus < 0:
            raise ValueError(f"workers is {self.workers}, cpus {self.cpus}; at least 1 and at least 0")
        if type(self.inner).setup is not Environment.setup:
            raise ConfigError(
                f"environment: {self.inner.name!r} needs the run and cannot be played by a worker on Ray; "
                "use it without played_on_ray"
            )

    @cached_property
    def inner(self) -> Environment:
        """The environment that `of` configures."""
        return build(Environment, dict(self.of), "environment.of")

    @property
    def stops(self) -> tuple[str, ...]:  # type: ignore[override]  # a constant in other environments
        return self.inner.stops

    @property
    def provides(self) -> Sequence[Capability]:
        return self.inner.provides

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return self.inner.tools()

    def check(self, phase: PhaseContext) -> None:
        self.inner.check(phase)

    def setup(self, run: StageContext) -> None:
        ray = connect(self.address)
        actor = ray.remote(EnvironmentWorker).options(
            num_cpus=self.cpus,
            max_restarts=-1,
            max_concurrency=self.concurrency,
            scheduling_strategy="SPREAD",
        )
        self.state.workers = [actor.remote(dict(self.of)) for _ in range(self.workers)]

    def episode(self) -> Episode:
        with self.state.lock:
            number = next(self.state.numbers)
        return PlayedOnRayEpisode(self.state.workers[number % self.workers], number)

    def close(self) -> None:
        import ray

        workers, self.state.workers = self.state.workers, []
        for worker in workers:
            ray.kill(worker)


class PlayedOnRayEpisode(Episode):
    """An episode that a worker holds under its number."""

    def __init__(self, worker: Any, number: int) -> None:
        self.worker, self.number = worker, number

    def reset(self, row: Row, seed: int) -> Observation:
        return self._answer(self.worker.reset.remote(self.number, row, seed))

    def step(self, action: Action) -> Observation:
        return self._answer(self.worker.step.remote(self.number, action))

    def _answer(self, asked: Any) -> Observation:
        import ray

        try:
            found: Observation = ray.get(asked)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None  # what the environment raised
        except ray.exceptions.RayError as error:
            raise EnvironmentFailure(f"the worker on Ray: {error}") from None
        return found

    def close(self) -> None:
        import ray

        with contextlib.suppress(ray.exceptions.RayError, ServiceError):  # a dead worker has no episodes
            self.worker.close.remote(self.number)
