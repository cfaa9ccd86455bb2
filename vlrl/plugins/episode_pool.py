"""Episodes in threads: at most `concurrency` calls at once, deadlines, retries, and every episode closed
whatever happens.

The trainer's thread starts episodes and hands in actions; it never waits for a slow environment longer than
it wants to. A call beyond its deadline is abandoned: the episode fails, is closed, and a new thread takes the
place of the one that hangs. A failed episode has no reward; it is counted as a rollout that could not be
scored (`vlrl/trainer/step/episodes.py`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from vlrl.plugins.episodes import (
    MAX_TEXT,
    Action,
    EnvironmentFailure,
    Episode,
    Observation,
    Past,
    ReplayDiverged,
    Trajectory,
    TryAgain,
)
from vlrl.plugins.registry import ConfigError
from vlrl.services.failures import RunFailure, of_the_machine
from vlrl.services.files import TRAJECTORIES, append_jsonl
from vlrl.types import Row

log = logging.getLogger("vlrl")

FAULTS = (
    Exception,
    SystemExit,
    asyncio.CancelledError,
)  # what an environment may raise without ending the run
CLOSE_SECONDS = 10.0  # for closing an episode
HANGING = 256  # abandoned threads that still run, beyond which the run ends


@dataclass(eq=False)
class EpisodeHandle:
    """An episode in the pool. After `collect` it has the newest `observation`, or the `error` that ended it.

    `owner` is the caller's, returned untouched. `seconds` and `steps` count its calls. `past` is what is
    repeated after the reset. `actions` are those of the trajectory's steps, of which the first `given` are a
    trunk's.
    """

    owner: Any
    row: Row
    seed: int
    past: Past | None = None
    number: int = 0
    episode: Episode | None = None
    observation: Observation | None = None
    error: BaseException | None = None
    seconds: float = 0.0
    steps: int = 0
    closed: bool = False
    given: int = 0
    actions: list[Action] = field(default_factory=list)
    trajectory: Trajectory = field(default_factory=lambda: Trajectory("", 0))


@dataclass(eq=False)
class _Job:
    handle: EpisodeHandle
    work: Callable[[], Observation | None]
    seconds: float
    what: str
    begun: float = 0.0
    abandoned: bool = False


class _OneTurn(Episode):
    """What a run without an environment answers: the episode is over after the first turn."""

    def step(self, action: Action) -> Observation:
        return Observation(done=True)


class EpisodeSource(Protocol):
    """What a pool needs of an environment (`vlrl.plugins.stages.Environment`)."""

    @property
    def name(self) -> str: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def turn_seconds(self) -> float: ...
    @property
    def episode_seconds(self) -> float: ...
    @property
    def retries(self) -> int: ...
    @property
    def record(self) -> int: ...
    def episode(self) -> Episode: ...


class EpisodePool:
    """The episodes of one call of a rollout strategy. A context manager: leaving it closes every episode.

    Args:
        environment: None gives episodes of a single turn.
        output: Folder for `trajectories.jsonl`; None records nothing.
        step: Step number that recorded trajectories are marked with.
    """

    def __init__(self, environment: EpisodeSource | None, output: Path | None = None, step: int = 0) -> None:
        self.environment, self.output, self.step_number = environment, output, step
        self.concurrency = environment.concurrency if environment is not None else 1
        self.changed = threading.Condition()
        self.queue: deque[_Job] = deque()
        self.running: set[_Job] = set()
        self.finished: list[EpisodeHandle] = []
        self.handles: list[EpisodeHandle] = []
        self.workers = self.hanging = self.outstanding = self.closing = 0
        self.open = True
        self.written = 0
        self.watcher: threading.Thread | None = None

    def __enter__(self) -> EpisodePool:
        return self

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.queue = deque(job for job in self.queue if job.what == "close")
        for handle in self.handles:
            self.close(handle)
        with self.changed:
            self.changed.wait_for(lambda: not self.closing, CLOSE_SECONDS + 1.0)
            self.open = False
            self.changed.notify_all()
        if self.watcher is not None:
            self.watcher.join(1.0)

    def count(self, values: Mapping[str, float]) -> None:
        """Add to the step's counters `environment/...`; a pool outside a run has none."""

    def fail(self, failed: Sequence[EpisodeHandle]) -> None:
        """Close failed episodes."""
        for handle in failed:
            self.close(handle, "error")

    @contextmanager
    def guard(self, handle: EpisodeHandle) -> Iterator[None]:
        """Around what is done with an observation. Where it raises (a picture that cannot be processed), the
        episode fails: `handle.error` is set."""
        try:
            yield
        except FAULTS as error:
            if isinstance(error, (RunFailure, ConfigError)) or of_the_machine(error):
                raise
            handle.error = error
            self.fail([handle])

    # --- calls of the trainer's thread ----------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether an answer is still to be collected."""
        return bool(self.outstanding or self.finished)

    def start(self, owner: Any, row: Row, seed: int, past: Past | None = None) -> EpisodeHandle:
        """Begin an episode. The actions of `past` are repeated after the reset; the episode fails with
        ReplayDiverged where an answer differs."""
        handle = EpisodeHandle(owner, row, seed, past, len(self.handles))
        handle.trajectory = Trajectory(row.id, seed, getattr(self.environment, "name", ""))
        self.handles.append(handle)
        calls = 1 + (len(past.steps) if past is not None else 0)
        seconds = max(
            self._limit("turn_seconds"),
            min(calls * self._limit("turn_seconds"), self._limit("episode_seconds")),
        )
        self._submit(_Job(handle, lambda: self._reset(handle), seconds, "reset"))
        return handle

    def branch(self, owner: Any, trunk: EpisodeHandle) -> EpisodeHandle:
        """Begin an episode that goes on from where `trunk` is, which waits for its next action; the next
        `collect` has it, with the opening.

        It is a copy where the environment can make one. Otherwise the trunk's actions are repeated (unless
        its episodes are stateless), and the branch fails where the environment does not answer as it answered
        the trunk.
        """
        made, told = None, trunk.trajectory
        with suppress(*FAULTS):  # a copy that fails is no copy
            made = trunk.episode.copy() if trunk.episode is not None else None
        if made is None:
            answers = [answer for _, answer in told.steps]
            handle = self.start(
                owner,
                trunk.row,
                trunk.seed,
                Past(told.opening, tuple(zip(trunk.actions, answers, strict=True))),
            )
        else:
            handle = EpisodeHandle(
                owner, trunk.row, trunk.seed, number=len(self.handles), episode=made, observation=told.opening
            )
            handle.trajectory = replace(told, end="")
            self.handles.append(handle)
            with self.changed:
                self.finished.append(handle)
        handle.trajectory.steps, handle.actions, handle.given = (
            list(told.steps),
            list(trunk.actions),
            len(told.steps),
        )
        return handle

    def step(self, handle: EpisodeHandle, action: Action) -> None:
        """Carry out an action."""
        left = min(self._limit("turn_seconds"), self._limit("episode_seconds") - handle.seconds)
        timed = replace(action, seconds=max(left, 0.0))
        self._submit(_Job(handle, lambda: self._step(handle, timed), left, f"turn {action.turn}"))

    def collect(self, patience: float) -> list[EpisodeHandle]:
        """Episodes with a new answer, in the order of their start.

        These are those of all calls, or of the calls that end within `patience` seconds, and of at least one.

        Raises what an environment raised where the machine, the run or the config is at fault, and
        EnvironmentFailure where too many calls hang.
        """
        with self.changed:
            self.changed.wait_for(lambda: not self.outstanding, patience)
            self.changed.wait_for(lambda: self.finished or not self.outstanding)
            found, self.finished = self.finished, []
            hanging = self.hanging
        found.sort(key=lambda handle: handle.number)  # not in the order in which threads ended
        for handle in found:
            if handle.error is not None and (
                isinstance(handle.error, (RunFailure, ConfigError)) or of_the_machine(handle.error)
            ):
                raise handle.error
        if hanging > HANGING:
            name = getattr(self.environment, "name", "")
            raise EnvironmentFailure(
                f"environment {name!r}: {hanging} calls hang; mend it, or give its own calls a shorter "
                "deadline"
            )
        return found

    def close(self, handle: EpisodeHandle, end: str = "") -> None:
        """Close an episode, in a thread of the pool. A second call does nothing."""
        with self.changed:
            if handle.closed:
                return
            handle.closed = True
        handle.trajectory.end = end or ("error" if handle.error is not None else "")
        if end:
            self._record(handle)
        if handle.episode is not None:
            self._submit(_Job(handle, lambda: self._close(handle), CLOSE_SECONDS, "close"))

    # --- threads --------------------------------------------------------------------------------------------

    def _limit(self, name: str) -> float:
        return float(getattr(self.environment, name)) if self.environment is not None else 60.0

    def _submit(self, job: _Job) -> None:
        with self.changed:
            if job.what == "close":
                self.queue.appendleft(job)
                self.closing += 1
            else:
                self.queue.append(job)
                self.outstanding += 1
            if self.watcher is None:
                self.watcher = threading.Thread(target=self._watch, name="episodes-watch", daemon=True)
                self.watcher.start()
            self._hire()
            self.changed.notify_all()

    def _hire(self) -> None:
        """Start threads for what waits. Called with the lock; closing is never kept waiting by busy
        threads."""
        spare = self.workers - len(self.running)
        room = max(
            self.concurrency - self.workers,
            1 if self.queue and self.queue[0].what == "close" and not spare else 0,
        )
        for _ in range(min(len(self.queue) - spare, room)):
            self.workers += 1
            threading.Thread(target=self._work, name="episode", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self.changed:
                if not self.queue or self.workers > self.concurrency + 1:
                    self.workers -= 1
                    return
                job = self.queue.popleft()
                job.begun = time.monotonic()
                self.running.add(job)
                self.changed.notify_all()
            result: Observation | None = None
            error: BaseException | None = None
            try:
                result = job.work()
            except BaseException as raised:  # noqa: BLE001  # a thread has nobody above it: what it raised is the episode's error
                error = raised
            with self.changed:
                if not job.abandoned:
                    self._settle(job, result, error)
                    continue
                self.hanging -= 1
            self._close(job.handle)
            return

    def _settle(self, job: _Job, result: Observation | None, error: BaseException | None) -> None:
        """Note the end of a job. Called with the lock."""
        handle = job.handle
        self.running.discard(job)
        if job.what == "close":
            self.closing -= 1
            if error is not None:
                log.warning(
                    "environment %r: closing an episode failed: %s: %s",
                    getattr(self.environment, "name", ""),
                    type(error).__name__,
                    error,
                )
        else:
            handle.seconds += time.monotonic() - job.begun
            handle.steps += 1
            handle.observation, handle.error = result, error
            self.outstanding -= 1
            self.finished.append(handle)
        self.changed.notify_all()

    def _watch(self) -> None:
        """Abandon calls beyond their deadline."""
        with self.changed:
            while self.open:
                now = time.monotonic()
                for job in [job for job in self.running if now >= job.begun + job.seconds]:
                    job.abandoned = True
                    self.workers -= 1
                    self.hanging += 1
                    self._settle(
                        job,
                        None,
                        EnvironmentFailure(
                            f"no answer to the {job.what} within {max(job.seconds, 0.0):.3g} seconds"
                        ),
                    )
                    self._hire()
                deadlines = [job.begun + job.seconds for job in self.running]
                self.changed.wait(max(min(deadlines) - now, 0.0) if deadlines else None)

    # --- in a thread of the pool ----------------------------------------------------------------------------

    def _reset(self, handle: EpisodeHandle) -> Observation:
        retries = self.environment.retries if self.environment is not None else 0
        for attempt in range(retries + 1):
            episode = handle.episode = (
                self.environment.episode() if self.environment is not None else _OneTurn()
            )
            try:
                if handle.closed:  # meanwhile
                    raise EnvironmentFailure("the episode was closed before its reset")
                opening = _checked(episode.reset(handle.row, handle.seed))
                if handle.past is not None and not episode.stateless:
                    self._repeat(episode, opening, handle.past)
            except FAULTS as error:
                if handle.closed:
                    self._close(handle)
                if (
                    handle.closed
                    or attempt == retries
                    or isinstance(error, (RunFailure, ConfigError))
                    or of_the_machine(error)
                ):
                    raise
                self._close(handle)
                continue
            handle.trajectory.opening = opening
            return opening
        raise AssertionError("unreachable")

    def _step(self, handle: EpisodeHandle, action: Action) -> Observation:
        episode = handle.episode
        if episode is None:
            raise EnvironmentFailure("the episode is closed")
        answer = self._answer(episode, action)
        handle.trajectory.steps.append((action.text, answer))
        handle.actions.append(action)
        return answer

    def _answer(self, episode: Episode, action: Action) -> Observation:
        """The environment's answer; a call that had no effect is repeated."""
        retries = self.environment.retries if self.environment is not None else 0
        for attempt in range(retries + 1):
            try:
                return _checked(episode.step(action))
            except TryAgain:
                if attempt == retries:
                    raise
                time.sleep(0.05 * 2**attempt)
        raise AssertionError("unreachable")

    def _repeat(self, episode: Episode, opening: Observation, past: Past) -> None:
        """Bring an episode that was reset to where another one was. Raises ReplayDiverged where it does not
        get there."""
        seconds, name = self._limit("turn_seconds"), getattr(self.environment, "name", "")
        for number, (action, told) in enumerate(((None, past.opening), *past.steps)):
            answer = opening if action is None else self._answer(episode, replace(action, seconds=seconds))
            if not answer.equals(told):
                then = told if isinstance(told, str) else told.text
                raise ReplayDiverged(
                    f"environment {name!r} answered the repeated "
                    f"{f'action {number}' if number else 'reset'} otherwise than the first time "
                    f"({answer.text[:60]!r}, then {then[:60]!r}): a branch of an episode needs an "
                    "environment that a seed determines, or one that "
                    "can be copied (`Episode.copy`); use a rollout strategy that does not branch"
                )

    def _close(self, handle: EpisodeHandle) -> None:
        """Close the handle's episode, unless it is closed."""
        with self.changed:
            episode, handle.episode = handle.episode, None
        if episode is not None:
            episode.close()

    def _record(self, handle: EpisodeHandle) -> None:
        """Write the trajectory of an episode, up to `record` of them."""
        if self.output is None or self.environment is None or self.written >= self.environment.record:
            return
        self.written += 1
        append_jsonl(self.output / TRAJECTORIES, {"step": self.step_number, **handle.trajectory.plain()})


def _checked(observation: Any) -> Observation:
    """The observation with its text cut to `MAX_TEXT`. Raises EnvironmentFailure for anything else than an
    observation."""
    if not isinstance(observation, Observation):
        raise EnvironmentFailure(
            f"`reset` and `step` return an Observation, got {type(observation).__name__}"
        )
    observation.check()
    return (
        replace(observation, text=observation.text[:MAX_TEXT] + " ... (cut)")
        if len(observation.text) > MAX_TEXT
        else observation
    )
