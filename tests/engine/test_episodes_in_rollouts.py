"""Episodes in rollouts: how they end, the context's limits, failures that enter no statistic, recordings, and
many episodes at once."""

import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from run_kit import View
from vlrl_rewards.environment_return import EnvironmentReturn

from vlrl.engine.fake import Fake
from vlrl.environments.recorded import Recorded
from vlrl.environments.tools import Tool, ToolEnvironment, ToolEpisode
from vlrl.methods.core.advantage import GRPO
from vlrl.methods.core.rollout import MultiTurn
from vlrl.methods.core.sampling import Plain
from vlrl.plugins.episodes import (
    ACTIONS,
    EPISODE_END,
    EPISODE_RETURN,
    INVALID_ACTIONS,
    TURN_PARTS,
    TURN_REWARDS,
    TURN_SPANS,
    Episode,
    Observation,
)
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import Environment
from vlrl.services.reaper import REAPER
from vlrl.trainer.step.scoring import RewardError
from vlrl.types import Rollout


def make_run(policy, env, respond, max_tokens=60, error_limit=1.0, output=None):
    run = View(
        policy=policy,
        engine=Fake(function=respond),
        sampling=Plain(max_tokens=max_tokens),
        settings=SimpleNamespace(error_limit=error_limit),
        environment=env,
        output=output,
    )
    run.engine.setup(run)
    return run


@dataclass(frozen=True)
class Counting(Environment):
    """Asks for the numbers from 1 on: pays 1 for a right one, part "right"; anything else is invalid. Done
    after `last`."""

    name = "counting"
    last: int = 3
    says: str = ""
    opening: str = ""

    def episode(self):
        return CountingEpisode(self)


class CountingEpisode(Episode):
    def __init__(self, settings):
        self.settings, self.next = settings, 1

    def reset(self, row, seed):
        return Observation(self.settings.opening)

    def step(self, action):
        if action.text.strip() != str(self.next):
            return Observation("that is no number", reward=0.0, invalid=True)
        self.next += 1
        done = self.next > self.settings.last
        return Observation(
            self.settings.says or "go on", reward=1.0, parts={"right": 1.0}, done=done, calls=1
        )


def counts(run):
    return {key.removeprefix("environment/"): value for key, value in run.counts.items()}


def counter(texts):
    """An engine that writes the texts in order, one per turn."""
    return lambda request, index: texts[request.tag.turns]


def test_rewards_per_turn_reach_the_rollout(text_policy, tools):
    run = make_run(text_policy, Counting(opening="from 1"), counter(["1", "2", "x", "3"]))
    (group,) = MultiTurn(max_turns=9)([tools.prompt("Count")], [1], run)
    (rollout,) = group
    assert (
        EPISODE_END[rollout] == "done"
        and EPISODE_RETURN[rollout] == 3.0
        and TURN_REWARDS[rollout] == [1.0, 1.0, 0.0, 1.0]
    )
    assert (
        TURN_PARTS[rollout] == {"right": 3.0}
        and ACTIONS[rollout] == ["1", "2", "x", "3"]
        and INVALID_ACTIONS[rollout] == 1
    )
    for turn, start, end in TURN_SPANS[rollout]:
        assert text_policy.decode(rollout.ids[start:end]) == ACTIONS[rollout][turn] and all(
            rollout.loss_mask[start:end]
        )
    assert (
        sum(end - start for _, start, end in TURN_SPANS[rollout])
        == sum(rollout.loss_mask)
        == rollout.sampled_tokens
        < len(rollout)
    )
    assert EnvironmentReturn()(rollout) == 3.0 and EnvironmentReturn(part="right")(rollout) == 3.0
    assert group.prompt is rollout.prompt and group.prompt.text == "Count\n\n\nfrom 1"
    assert counts(run) == {
        "episodes": 1,
        "end/done": 1,
        "turns": 4,
        "tool_calls": 3,
        "invalid_actions": 1,
        "calls": 5,
    }


def test_an_environment_that_pays_nothing_gives_no_reward(text_policy, tools):
    with pytest.raises(KeyError, match="no reward"):
        EnvironmentReturn()(Rollout(tools.prompt("q"), [1], info={"turn_parts": {}}))
    assert (
        EnvironmentReturn(missing=-1.0, part="x")(Rollout(tools.prompt("q"), [1], info={"turn_parts": {}}))
        == -1.0
    )


@pytest.mark.parametrize(
    ("settings", "texts", "end", "turns"),
    [
        ({"max_turns": 2}, ["1", "2", "3"], "max_turns", 2),
        ({"max_turns": 9}, ["1", "2", "3"], "done", 3),
        ({"max_turns": 9, "max_invalid": 1}, ["x"] * 9, "invalid_action", 2),
        ({"max_turns": 9, "max_invalid": 0}, ["1", "x", "2"], "invalid_action", 2),
        ({"max_turns": 9}, ["1", "word " * 200, "2"], "length", 2),
    ],
)
def test_how_an_episode_ends(text_policy, tools, settings, texts, end, turns):
    run = make_run(text_policy, Counting(), counter(texts))
    (rollout,) = MultiTurn(**settings)([tools.prompt("Count")], [1], run)[0]
    assert (
        EPISODE_END[rollout] == end
        and rollout.info["turns"] == turns
        and rollout.truncated == (end == "length")
    )
    assert TURN_REWARDS[rollout][0] == float(texts[0] == "1"), "the last turn is played, too"
    assert counts(run)[f"end/{end}"] == 1.0 and counts(run)["turns"] == (turns - (end == "length")), (
        "a cut turn is not carried out"
    )


@pytest.mark.parametrize(("overflow", "end"), [("cut", "done"), ("refuse", "done"), ("end", "context")])
def test_the_context_has_an_end(text_policy, tools, overflow, end):
    prompt = tools.prompt("Count")
    run = make_run(text_policy, Counting(says="word " * 200), counter(["1", "2", "3"]), max_tokens=20)
    limit = len(text_policy.encode(prompt)) + 400
    strategy = MultiTurn(max_turns=9, max_context=limit, overflow=overflow, max_reply_tokens=10_000)
    (rollout,) = strategy([prompt], [1], run)[0]
    assert EPISODE_END[rollout] == end and len(text_policy.encode(rollout.prompt)) + len(rollout) <= limit
    said = rollout.info["transcript"]
    if overflow == "cut":
        assert "(cut)" in said and counts(run)["observations_cut"] >= 1 and EPISODE_RETURN[rollout] == 3.0
    elif overflow == "refuse":
        assert "too long" in said and "word" not in said
    else:
        assert rollout.finish == "length" and rollout.loss_mask is None, (
            "nothing of the observation was appended"
        )


def test_a_turn_ends_where_the_context_does(text_policy, tools):
    prompt = tools.prompt("Count")
    run = make_run(text_policy, Counting(), lambda request, index: "word " * 100, max_tokens=500)
    (rollout,) = MultiTurn(max_context=len(text_policy.encode(prompt)) + 12)([prompt], [1], run)[0]
    assert EPISODE_END[rollout] == "context" and len(rollout) == 12
    with_opening = make_run(text_policy, Counting(opening="word " * 100), counter(["1"]))
    assert MultiTurn(max_context=40)([prompt], [1], with_opening)[
        0
    ].rollouts == [] and "has no room" not in str(with_opening.warnings)
    assert "the prompt has" in with_opening.warnings[0]


def test_held_out_episodes_leave_the_statistics_alone(text_policy, tools):
    run = make_run(text_policy, Counting(), counter(["1", "2", "3"]))
    played = MultiTurn(max_turns=5).play(
        [tools.prompt("a"), tools.prompt("b")], [Plain(max_tokens=20)(None, 0)] * 2, run
    )
    assert (
        [len(rollouts) for rollouts in played] == [1, 1]
        and EPISODE_RETURN[played[0][0]] == 3.0
        and not run.counts
    )
    broken = make_run(text_policy, Wild(stuck=1.0), counter(["go"]))
    broken.environment.reset_log()
    (failure,) = MultiTurn(max_turns=5).play([tools.prompt("a")], [Plain(max_tokens=20)(None, 0)], broken)
    assert failure.startswith("environment: EnvironmentFailure") and broken.score_counts.errors == 0


def test_a_recording_replays_without_the_environment(text_policy, tools, tmp_path):
    texts = ["1", "x", "2", "3"]
    run = make_run(text_policy, Counting(record=2, opening="hi"), counter(texts), output=tmp_path)
    (group,) = MultiTurn(max_turns=9)([tools.prompt("Count")], [3], run)
    lines = [json.loads(line) for line in (tmp_path / "trajectories.jsonl").read_text().splitlines()]
    assert (
        len(lines) == 2
        and lines[0]["end"] == "done"
        and [step["action"] for step in lines[0]["steps"]] == texts
    )
    again = make_run(text_policy, Recorded(path=str(tmp_path / "trajectories.jsonl")), counter(texts))
    (replayed,) = MultiTurn(max_turns=9)([tools.prompt("Count")], [1], again)
    assert replayed.rollouts[0].ids == group.rollouts[0].ids and EPISODE_RETURN[replayed.rollouts[0]] == 3.0
    other = make_run(
        text_policy, Recorded(path=str(tmp_path / "trajectories.jsonl")), counter(["1", "2", "3"])
    )
    assert MultiTurn(max_turns=9)([tools.prompt("Count")], [1], other)[0].rollouts == [], (
        "nothing says what would have been answered"
    )
    (tmp_path / "bad.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="bad.jsonl:1 is no trajectory"):
        Recorded(path=str(tmp_path / "bad.jsonl")).check(None)


# --- failures -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wild(Environment):
    """Each episode has a process and a folder; of the episodes a share hangs, and a share crashes, at the
    first turn."""

    name = "wild"
    stuck: float = 0.0
    crash: float = 0.0
    turn_seconds: float = 1.5  # enough for a busy machine to answer in
    retries: int = 0
    made: list = field(default_factory=list)

    def reset_log(self):
        self.made.clear()

    def episode(self):
        number = len(self.made)
        self.made.append(number)
        share = (number * 37 % 100) / 100
        return WildEpisode(
            "stuck" if share < self.stuck else "crash" if share < self.stuck + self.crash else ""
        )


class WildEpisode(Episode):
    def __init__(self, task):
        self.task, self.process, self.folder = task, None, None

    def reset(self, row, seed):
        self.folder = REAPER.folder()
        if self.task:
            self.process = REAPER.spawn(
                [sys.executable, "-S", "-c", "import time; time.sleep(60)"], stdout=-1
            )
        return Observation()

    def step(self, action):
        (self.folder / f"{action.turn}").write_text(action.text)
        if self.task == "crash":
            raise ConnectionResetError("the simulator died")
        if self.task == "stuck":
            self.process.stdout.read()  # until somebody ends the process
        return Observation("more", reward=0.0) if action.turn < 2 else Observation(reward=1.0, done=True)

    def close(self):
        if self.process is not None:
            REAPER.end(self.process)
        if self.folder is not None:
            REAPER.remove(self.folder)


def test_128_episodes_of_which_some_hang_and_some_crash(text_policy, tools, tmp_path, monkeypatch):
    """All end as done or as counted errors; no process, folder, thread or file handle is left; what failed
    has no reward."""
    monkeypatch.setattr(
        tempfile, "tempdir", str(tmp_path)
    )  # folders of other tests at the same time are not looked at
    env = Wild(stuck=0.05, crash=0.02, concurrency=16)
    REAPER.remove(REAPER.folder())  # its helper process is there from the beginning
    handles, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    run = make_run(text_policy, env, lambda request, index: "go")
    begun = time.monotonic()
    groups = MultiTurn(max_turns=4, patience=0.05)([tools.prompt(f"p{i}") for i in range(16)], [8] * 16, run)
    spent = time.monotonic() - begun
    failed = sum((n * 37 % 100) / 100 < 0.07 for n in range(128))
    done = [rollout for group in groups for rollout in group]
    assert (
        failed == 9 and len(done) == 128 - failed and {EPISODE_END[rollout] for rollout in done} == {"done"}
    )
    assert (
        counts(run)["end/done"] == 128 - failed
        and counts(run)["end/error"] == failed
        and run.score_counts.errors == failed
    )
    assert {EPISODE_RETURN[rollout] for rollout in done} == {1.0}
    assert spent < 120.0
    limit = time.monotonic() + 30
    while time.monotonic() < limit and (
        threading.active_count() > threads or len(os.listdir("/proc/self/fd")) > handles
    ):
        time.sleep(0.02)
    assert not list(tmp_path.iterdir()) and not REAPER.processes and not REAPER.folders
    assert threading.active_count() <= threads and len(os.listdir("/proc/self/fd")) <= handles


def test_a_failed_episode_moves_no_baseline(text_policy, tools):
    """Of four episodes one crashes. Mean and std are those of the three that ended, not of three and a 0."""
    env = Wild(crash=0.1, turn_seconds=5.0)
    run = make_run(text_policy, env, lambda request, index: "go")
    (group,) = MultiTurn(max_turns=4)([tools.prompt("p")], [4], run)
    assert len(group) == 3 and run.score_counts.errors == 1
    for rollout, reward in zip(group, (1.0, 0.0, 0.5)):
        rollout.reward = reward
    assert GRPO(scale="none")([group]) == [pytest.approx([0.5, -0.5, 0.0])]


def test_too_many_failures_end_the_run(text_policy, tools):
    run = make_run(text_policy, Wild(crash=1.0), lambda request, index: "go", error_limit=0.1)
    with pytest.raises(
        RewardError, match="environment 'wild' raised on row 'p': ConnectionResetError: the simulator died"
    ):
        MultiTurn()([tools.prompt("p")], [8], run)
    assert not REAPER.processes and not REAPER.folders


# --- tools --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shelf(ToolEnvironment):
    """A key-value store of one episode."""

    name = "shelf"

    def toolbox(self):
        return ShelfEpisode().tools.values()

    def episode(self):
        return ShelfEpisode()


class ShelfEpisode(ToolEpisode):
    def __init__(self):
        self.kept = {}
        super().__init__([Tool.of(self.put), Tool.of(self.get)])

    def put(self, key: str, value: int = 1) -> str:
        """Keeps a number."""
        self.kept[key] = value
        return "kept"

    def get(self, key: str) -> dict:
        """Gives a number back."""
        return {"value": self.kept[key]}


def call(name, **arguments):
    return f"so <tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_tools_with_state(text_policy, tools):
    texts = [
        call("put", key="a", value=7),
        call("get", key="a"),
        call("get", key="b"),
        call("put", key="a", value="7"),
        call("take"),
        "done",
    ]
    run = make_run(text_policy, Shelf(), counter(texts), max_tokens=200)
    (rollout,) = MultiTurn(max_turns=9)([tools.prompt("q")], [1], run)[0]
    said = rollout.info["transcript"]
    for part in (
        "kept",
        '{"value": 7}',
        "Error: KeyError: 'b'",
        "must be of type integer",
        "there is no tool 'take'; the tools are put, get",
    ):
        assert part in said
    assert (
        INVALID_ACTIONS[rollout] == 3
        and counts(run)["tool_calls"] == 2
        and EPISODE_END[rollout] == "done"
        and not EPISODE_RETURN.on(rollout)
    )
    assert '"name": "put"' in text_policy.render(rollout.prompt) and "Keeps a number." in text_policy.render(
        rollout.prompt
    )
    silent = make_run(text_policy, Shelf(), counter(["done"]))
    (plain,) = MultiTurn(show_tools=False)([tools.prompt("q")], [1], silent)[0]
    assert "put" not in text_policy.render(plain.prompt)


def test_schemas_come_from_types():
    def look(
        where: str, depth: int = 1, exact: bool = False, points: list[float] = (), kind: str | None = None
    ) -> str:  # noqa: B006
        """Looks somewhere."""

    schema = Tool.of(look).schema["function"]
    assert schema["description"] == "Looks somewhere." and schema["parameters"]["required"] == ["where"]
    assert schema["parameters"]["properties"]["points"] == {"type": "array", "items": {"type": "number"}}
    assert schema["parameters"]["properties"]["kind"] == {"type": "string"}
    assert "missing" in Tool.of(look).problem({}) and "no argument 'x'" in Tool.of(look).problem(
        {"where": "a", "x": 1}
    )
    assert Tool.of(look).problem({"where": "a", "exact": 1}) == "argument 'exact' must be of type boolean."

    def untyped(where):
        """Looks."""

    with pytest.raises(TypeError, match="argument 'where' has no type"):
        Tool.of(untyped)
