"""The pool of episodes: deadlines, retries, failures that are no answers, episodes that are always closed."""

import threading
import time
from dataclasses import dataclass, field

import pytest

from vlrl.plugins.episode_pool import EpisodePool
from vlrl.plugins.episodes import Action, Episode, Observation, Past, TryAgain, copied
from vlrl.plugins.stages import Environment
from vlrl.types import Row


class Log:
    """What happened to the episodes of an environment."""

    def __init__(self):
        self.made, self.closed, self.at_once, self.most, self.lock = 0, 0, 0, 0, threading.Lock()


class Scene(Episode):
    """Does what the row's task says at its first turn, and is done at its second."""

    def __init__(self, log):
        self.log, self.released = log, threading.Event()
        log.made += 1

    def reset(self, row, seed):
        self.row, self.tries = row, 0
        if row.task == "no_reset" or (row.task == "second_reset" and self.log.made == 1):
            raise ConnectionError("down")
        return Observation(f"seed {seed}")

    def step(self, action):
        with self.log.lock:
            self.log.at_once += 1
            self.log.most = max(self.log.most, self.log.at_once)
        try:
            return self.answer(action)
        finally:
            with self.log.lock:
                self.log.at_once -= 1

    def answer(self, action):
        if action.turn == 2:
            return Observation(done=True, reward=1.0)
        if self.row.task == "hang":
            self.released.wait(30)
        elif self.row.task == "crash":
            raise RuntimeError("broken pipe")
        elif self.row.task == "exit":
            raise SystemExit(0)
        elif self.row.task == "busy":
            self.tries += 1
            if self.tries == 1:
                raise TryAgain("busy")
        elif self.row.task == "text":
            return "not an observation"
        elif self.row.task == "nan":
            return Observation("x", reward=float("nan"))
        elif self.row.task == "slow":
            time.sleep(0.1)
        elif self.row.task == "endless":
            return Observation("x" * (3 << 20))
        return Observation("ok", calls=1)

    def close(self):
        with self.log.lock:
            self.log.closed += 1
        self.released.set()


@dataclass(frozen=True)
class World(Environment):
    """Episodes of `Scene`."""

    name = "world"
    log: Log = field(default_factory=Log)

    def episode(self):
        return Scene(self.log)


def play(pool, tasks, patience=5.0):
    """Two turns of an episode per task. Returns {task number: (why it failed or "done", its
    observations)}."""
    ended, said = {}, {number: [] for number in range(len(tasks))}
    for number, task in enumerate(tasks):
        pool.start(number, Row(f"r{number}", "q", task=task), seed=7)
    while pool.busy:
        for handle in pool.collect(patience):
            if handle.error is not None:
                ended[handle.owner] = f"{type(handle.error).__name__}: {handle.error}"
                pool.close(handle, "error")
                continue
            said[handle.owner].append(handle.observation)
            if handle.observation.done:
                ended[handle.owner] = "done"
                pool.close(handle, "done")
            else:
                pool.step(handle, Action(f"turn {len(said[handle.owner])}", len(said[handle.owner])))
    return ended, said


@pytest.mark.parametrize(
    ("task", "end"),
    [
        ("", "done"),
        ("busy", "done"),
        ("second_reset", "done"),
        ("endless", "done"),
        ("crash", "RuntimeError: broken pipe"),
        ("exit", "SystemExit: 0"),
        ("no_reset", "ConnectionError: down"),
        ("text", "EnvironmentFailure: `reset` and `step` return an Observation, got str"),
        ("nan", "EnvironmentFailure: rewards must be finite numbers, got [nan]"),
        ("hang", "EnvironmentFailure: no answer to the turn 1 within 0.2 seconds"),
    ],
)
def test_every_episode_ends_and_is_closed(task, end):
    world = World(turn_seconds=0.2)
    with EpisodePool(world) as pool:
        ended, said = play(pool, [task])
    assert ended == {0: end} and world.log.closed == world.log.made
    if task == "endless":
        assert len(said[0][1].text) < (1 << 20) + 20, "an endless text is cut"
    if end == "done":
        assert said[0][0].text == "seed 7" and said[0][-1].reward == 1.0


def test_a_hanging_episode_holds_nobody_up():
    world = World(concurrency=2, turn_seconds=0.5)
    with EpisodePool(world) as pool:
        begun = time.monotonic()
        for number in range(12):
            pool.start(number, Row(str(number), "q", task="hang" if number < 2 else ""), 0)
        answered = []
        while len(answered) < 12:
            found = pool.collect(0.01)
            answered += found
        for handle in answered:
            pool.step(handle, Action("go", 1))
        first = pool.collect(0.0)
        assert all(handle.error is None for handle in first) or time.monotonic() - begun >= 0.5
        rest = list(first)
        while pool.busy:
            rest += pool.collect(0.05)
        assert (
            sorted(handle.owner for handle in rest if handle.error is not None) == [0, 1] and len(rest) == 12
        )
        assert time.monotonic() - begun < 30.0
    assert world.log.closed == 12


def test_calls_at_once_are_bounded():
    world = World(concurrency=3)
    with EpisodePool(world) as pool:
        ended, _ = play(pool, ["slow"] * 12)
    assert set(ended.values()) == {"done"} and world.log.most == 3


def test_an_episode_has_a_time_of_its_own():
    world = World(turn_seconds=5.0, episode_seconds=0.05)
    with EpisodePool(world) as pool:
        ended, _ = play(pool, ["slow"])
    assert ended[0].startswith("EnvironmentFailure: no answer to the turn 1 within 0.0")


def test_leaving_the_pool_by_an_exception_closes_everything():
    world = World()
    with pytest.raises(KeyboardInterrupt), EpisodePool(world) as pool:
        for number in range(8):
            pool.start(number, Row(str(number), "q", task="hang"), 0)
        for handle in pool.collect(5.0):
            pool.step(handle, Action("go", 1))
        raise KeyboardInterrupt
    assert world.log.closed == world.log.made == 8


def test_earlier_actions_are_repeated():
    world = World()
    with EpisodePool(world) as pool:
        past = Past(Observation("seed 3"), ((Action("one", 1), Observation("ok", calls=1)),))
        handle = pool.start("a", Row("r", "q"), 3, past)
        assert (
            pool.collect(5.0) == [handle]
            and handle.observation.text == "seed 3"
            and handle.trajectory.steps == []
        )
        pool.step(handle, Action("two", 2))
        pool.collect(5.0)
        assert handle.observation.done


class Counter(Episode):
    """Says how many steps there were. `kind`: whether it can be copied, keeps no state, or neither."""

    def __init__(self, kind, stepped):
        self.kind, self.stepped, self.said = kind, stepped, []

    @property
    def stateless(self):
        return self.kind == "stateless"

    def copy(self):
        if self.kind == "broken":
            raise OSError("no copy today")
        return copied(self, "said") if self.kind == "copied" else None

    def step(self, action):
        self.stepped.append(action.text)
        self.said.append(action.text)
        return Observation(action.text if self.stateless else " ".join(self.said), calls=1)


@dataclass(frozen=True)
class Counters(Environment):
    """Episodes of `Counter`."""

    name = "counters"
    what: str = ""
    stepped: list = field(default_factory=list)

    def episode(self):
        return Counter(self.what, self.stepped)


@pytest.mark.parametrize(
    ("kind", "repeated"), [("copied", 0), ("stateless", 0), ("neither", 2), ("broken", 2)]
)
def test_a_branch_goes_on_where_its_trunk_is(kind, repeated):
    """Without a second call of the trunk's actions, where the environment needs none."""
    world = Counters(what=kind)
    with EpisodePool(world) as pool:
        trunk = pool.start("trunk", Row("r", "q"), 3)
        pool.collect(5.0)
        for turn, text in enumerate(("a", "b"), 1):
            pool.step(trunk, Action(text, turn))
            pool.collect(5.0)
        branch = pool.branch("branch", trunk)
        assert pool.busy and pool.collect(5.0) == [branch] and branch.error is None
        assert (
            branch.observation == trunk.trajectory.opening
            and world.stepped == ["a", "b"] + ["a", "b"][:repeated]
        )
        pool.step(branch, Action("c", 3))
        pool.step(trunk, Action("d", 3))
        pool.collect(5.0)
        one, other = trunk.observation.text, branch.observation.text
        assert (one, other) == (("d", "c") if kind == "stateless" else ("a b d", "a b c")), (
            "neither sees the other's steps"
        )
        assert [text for text, _ in branch.trajectory.steps] == ["a", "b", "c"] and branch.given == 2, (
            "the record of a branch is whole"
        )
        assert [text for text, _ in trunk.trajectory.steps] == ["a", "b", "d"] and trunk.given == 0


def test_shipped_environments_copy_or_need_no_copy():
    from vlrl.environments.calculator import Calculator
    from vlrl.environments.shop import Shop
    from vlrl.environments.tables import Tables
    from vlrl.environments.toolset import Toolset
    from vlrl.environments.zoom import Zoom

    assert Calculator().episode().stateless and Zoom().episode().stateless
    assert Toolset(of={"a": {"name": "calculator"}, "b": {"name": "zoom"}}).episode().stateless
    assert not Toolset(of={"a": {"name": "calculator"}, "b": {"name": "tables"}}).episode().stateless
    episode = Shop().episode()
    episode.reset(Row("r", "q"), 1)
    episode.step(Action("search[red]", 1))
    twin = episode.copy()
    assert twin.shown() == episode.shown() and len(episode.results) > 1
    twin.step(Action(f"click[{twin.results[0]}]", 2))
    twin.chosen["size"] = "large"
    assert episode.product is None and episode.chosen == {} and twin.product is not None
    tables = Tables().episode()
    tables.unsolved = [("f", "1")]
    tables.copy().unsolved.clear()
    assert tables.unsolved == [("f", "1")]
