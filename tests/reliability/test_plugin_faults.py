"""What plug-in code may raise: a verifier or tool that fails costs one rollout, no memory is no verdict,
exit() ends nothing unseen."""

from __future__ import annotations

import asyncio
import errno
import json
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
from kit import open_run, warnings_of
from reliability_kit import CONFIGS, ENVIRONMENT, ROOT, WORDS, config

from vlrl.engine.fake import Fake
from vlrl.environments.zoom import Zoom
from vlrl.plugins.episodes import Action, Episode, Observation
from vlrl.plugins.registry import ConfigError, load_plugin_file, register
from vlrl.plugins.stages import Callback, Environment, Reward
from vlrl.plugins.tool_calls import last_call
from vlrl.services.failures import OutOfMemoryError, RunFailure, out_of_memory
from vlrl.services.files import read_jsonl
from vlrl.trainer.step.loop import train_step
from vlrl.trainer.step.scoring import RewardError, run_rewards
from vlrl.trainer.views import StepView
from vlrl.training import train
from vlrl.types import CoordinateSpace, Group, Media, Prompt, Rollout, Row


def deep(n=0):
    return deep(n + 1)


class OutOfMemoryOfADevice(RuntimeError):
    """Has the name that torch gives it."""


OutOfMemoryOfADevice.__name__ = "OutOfMemoryError"
FAULTS = [
    RuntimeError("x"), deep, SystemExit(0), SystemExit("bye"), asyncio.CancelledError(), StopIteration(),
    AssertionError(), KeyError("k"),
    TimeoutError(),
    RuntimeError("the judge said: not enough memory, CUDA out of memory, can't allocate memory"),
    ConfigError("no"),
]  # fmt: skip
MACHINE = [
    MemoryError(), OutOfMemoryOfADevice("CUDA out of memory"), OSError(errno.ENOMEM,
        "Cannot allocate memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 9 bytes"),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Raises(Reward):
    """Raises on the answers "bad", the first `times` times, in one of three ways of giving scores."""

    fault: object = None
    way: str = "plain"
    times: float = float("inf")
    asked: list = field(default_factory=list)

    def raise_on(self, rollout):
        if rollout.text == "bad" and self.fault is not None:
            self.asked.append(1)
            if len(self.asked) <= self.times:
                if callable(self.fault):
                    self.fault()
                raise self.fault
        return 1.0

    def __call__(self, rollout):
        async def later():
            await asyncio.sleep(0)
            return self.raise_on(rollout)

        return later() if self.way == "awaited" else self.raise_on(rollout)


@dataclass(frozen=True, kw_only=True)
class RaisesForGroups(Raises):
    """The same for groups."""

    def score_group(self, group):
        return [self(rollout) for rollout in group]


WAYS = {"plain": Raises, "awaited": Raises, "group": RaisesForGroups}


def groups():
    prompts = [Prompt(Row(name, "q"), ()) for name in ("a", "b")]
    return [
        Group(prompt, [Rollout(prompt, [1], text) for text in texts])
        for prompt, texts in zip(prompts, (["good", "bad"], ["good", "fine"]))
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "fault", FAULTS, ids=lambda fault: getattr(fault, "__name__", None) or repr(fault)[:24]
)
def test_whatever_a_verifier_raises_costs_its_rollouts_alone(fault, way):
    made = groups()
    failures = run_rewards(made, {"one": WAYS[way](fault=fault, way=way), "two": Raises()})
    lost = [rollout.text for rollout, slot, _ in failures if slot == "one"]
    assert lost == (["good", "bad"] if way == "group" else ["bad"])
    assert [rollout.rewards.get("one") for rollout in made[1]] == [1.0, 1.0] and all(
        rollout.rewards["two"] == 1.0 for g in made for rollout in g
    )
    assert "one" not in made[0].rollouts[1].rewards


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "fault", [*MACHINE, OSError(errno.EMFILE, "Too many open files")], ids=lambda fault: repr(fault)[:30]
)
def test_a_machine_without_resources_is_asked_again_and_is_no_verdict(fault, way):
    made, reward = groups(), WAYS[way](fault=fault, way=way, times=1)
    assert run_rewards(made, {"one": reward}) == [] and len(reward.asked) == 2
    assert all(rollout.rewards["one"] == 1.0 for group in made for rollout in group)
    made, reward = groups(), WAYS[way](fault=fault, way=way)
    expected = OSError if isinstance(fault, OSError) and fault.errno == errno.EMFILE else OutOfMemoryError
    with pytest.raises(
        expected,
        match="Too many open files"
        if expected is OSError
        else "step 3, reward 'one' on row 'a', asked twice: out of memory",
    ):
        run_rewards(made, {"one": reward}, "step 3, ")
    assert len(reward.asked) == 2 and "one" not in made[0].rollouts[1].rewards


def test_a_text_that_speaks_of_memory_is_no_lack_of_it():
    for text in ("not enough memory", "can't allocate memory", "CUDA out of memory", "[errno 12]"):
        assert (
            out_of_memory(ValueError(text), "") is None
            and out_of_memory(RuntimeError(f"judge: {text}"), "") is None
        )


def test_an_interrupt_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt):
        run_rewards(groups(), {"one": Raises(fault=KeyboardInterrupt())})


# --- tools --------------------------------------------------------------------------------------------------


@register("test_tool_that_raises")
@dataclass(frozen=True)
class ToolThatRaises(Environment):
    """Raises on rows whose id ends in "3", replies once to all others."""

    retries: int = 0

    def episode(self):
        return EpisodeThatRaises()


class EpisodeThatRaises(Episode):
    """Raises on rows whose id ends in "3", replies once to all others."""

    def reset(self, row, seed):
        self.row = row
        return Observation()

    def step(self, action):
        if self.row.id.endswith("3"):
            raise FAULT
        return Observation("go on") if action.turn == 1 else Observation(done=True)


FAULT: BaseException = RuntimeError()


class Unread(Media):
    """A picture that nobody opens."""

    kind, key = "image", "unread"

    def load(self):
        raise AssertionError("not reached")


def tool_run(tmp_path, *more):
    run = open_run(
        tmp_path,
        "rollout.name=multi_turn",
        "environment.name=test_tool_that_raises",
        "error_limit=0.5",
        "group_size=2",
        "sampling.max_tokens=40",
        *more,
    )
    run.engine = Fake(options=("one 1", "two"))
    run.engine.setup(run)
    return run


@pytest.mark.parametrize(
    "fault",
    [
        RuntimeError("socket closed"),
        SystemExit(0),
        RecursionError(),
        TimeoutError(),
        asyncio.CancelledError(),
    ],
    ids=repr,
)
def test_a_tool_that_raises_costs_its_conversation_alone(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(sys.modules[__name__], "FAULT", fault)
    run = tool_run(tmp_path)
    view = StepView.between_steps(run)
    made = run.rollout([run.prompt_template(row) for row in run.rows["mine"]], [2] * 4, view)
    assert [len(group) for group in made] == [2, 2, 2, 0] and all(
        rollout.info["turns"] == 2 for group in made for rollout in group
    )
    view.score(made)
    assert (run.score_counts.scored, run.score_counts.errors) == (8, 2)
    said = warnings_of(run)
    assert (
        len(said) == 1
        and "2 rollouts" in said[0]
        and f"environment 'test_tool_that_raises' raised on row 'r3': {type(fault).__name__}" in said[0]
    )
    metrics = train_step(run).metrics
    assert metrics["reward/errors"] == 4.0


def test_a_tool_that_raises_too_often_or_without_memory_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "FAULT", RuntimeError("down"))
    run = tool_run(tmp_path, "error_limit=0.1", "group_size=4")
    prompts = [run.prompt_template(row) for row in run.rows["mine"]]
    with pytest.raises(
        RewardError, match="environment 'test_tool_that_raises' raised on row 'r3': RuntimeError: down"
    ):
        run.rollout(prompts, [4] * 4, StepView.between_steps(run))
    for fault in MACHINE:
        monkeypatch.setattr(sys.modules[__name__], "FAULT", fault)
        with pytest.raises(type(fault)):
            run.rollout(prompts, [4] * 4, StepView.between_steps(run))


@pytest.mark.parametrize(
    "arguments", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, '{"name": "\\ud800"}', "\x00", "NaN"]
)
def test_calls_that_no_parser_likes_are_answered(arguments):
    for text in (
        f"<tool_call>{arguments}</tool_call>",
        f'<tool_call>{{"name": "zoom", "arguments": {{"box": {arguments}}}}}</tool_call>',
    ):
        action = Action(text, images=(Unread(),), spaces=(CoordinateSpace((100, 80), (100, 80)),))
        assert last_call(text) is not None and not Zoom().episode().step(action).done


@pytest.mark.parametrize(
    ("box", "shown"),
    [([0, 0, 4000, 8], False), ([0, 0, 8, 1000], False), ([0, 0, 800, 8], True), ([9, 0, 8, 900], False)],
)
def test_a_crop_that_processors_refuse_is_answered_too(box, shown):
    """Qwen's processors raise on pictures that are 200 times as long as wide."""
    text = f"<tool_call>{json.dumps({'name': 'zoom', 'arguments': {'box': box}})}</tool_call>"
    answer = (
        Zoom()
        .episode()
        .step(Action(text, images=(Unread(),), spaces=(CoordinateSpace((4000, 1000), (4000, 1000)),)))
    )
    assert ("at most 100 times as long as wide" in answer.text) != shown and bool(answer.media) == shown


# --- exit() -------------------------------------------------------------------------------------------------


@register("test_reward_that_exits")
@dataclass(frozen=True)
class RewardThatExits(Reward):
    """Calls exit() for one in 20 completions."""

    def __call__(self, rollout):
        if sum(rollout.ids) % 20 == 3:
            sys.exit(0)
        return float(len(set(rollout.ids)) % 3)


@register("test_callback_that_exits")
@dataclass(frozen=True)
class CallbackThatExits(Callback):
    """Calls exit() after the second step."""

    def __call__(self, run, groups):
        if run.step == 2:
            sys.exit(0)
        return {}


def test_a_run_goes_on_after_a_verifier_that_exits(tmp_path):
    more = ["rewards.any.name=test_reward_that_exits", "error_limit=0.9", "group_size=4", "steps=8"]
    train(config(tmp_path / "run", *more), live=False)
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert len(rows) == 8 and rows[-1]["reward/errors"] > 0


def test_code_that_exits_elsewhere_ends_the_run_with_its_place(tmp_path):
    with pytest.raises(
        RunFailure, match=rf"step 2: .*{__name__}.py:\d+ called exit\(0\), which would end the run unseen"
    ):
        train(config(tmp_path / "run", "callbacks.stop.name=test_callback_that_exits"), live=False)


def test_a_plugin_file_that_exits_is_a_mistake(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import sys\n\nsys.exit(0)\n")
    with pytest.raises(ConfigError, match=r"mine.py:3: SystemExit: 0; mend the file"):
        load_plugin_file(file)


SOURCE = """
import sys
from dataclasses import dataclass
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Source

@register("source_that_exits")
@dataclass(frozen=True, kw_only=True)
class SourceThatExits(Source):
    def __call__(self):
        sys.exit(0)
"""


def test_a_command_whose_plugin_exits_has_failed(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    command = [sys.executable, "-m", "vlrl", "train", *CONFIGS, *WORDS, f"output={tmp_path / 'run'}"]
    command += [
        f"plugins=[{file}, {ROOT / 'tests' / 'distributed' / 'hash_reward.py'}]",
        "data.train={mine: {name: source_that_exits}}",
    ]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr[-2000:]
    assert done.stderr.count("\n") == 1 and f"{file}:11 called exit(0)" in done.stderr
