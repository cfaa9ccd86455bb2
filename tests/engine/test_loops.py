"""The one-step-off and asynchronous loops: staleness, threads against turns, every row trained once,
resuming."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from vlrl.config import load
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Callback, Reward, Source
from vlrl.trainer.pipeline import loops
from vlrl.training import train
from vlrl.types import Row

TINY = "policy={name: text, tiny: {hidden: 16, layers: 1, heads: 2, kv_heads: 1, intermediate: 32}}"


@register("test_ahead_rows")
@dataclass(frozen=True, kw_only=True)
class Rows(Source):
    """Twelve questions."""

    def __call__(self):
        return [Row(f"r{i}", f"Pick {i}", answer="7", target="7") for i in range(12)]


@register("test_ahead_ids")
@dataclass(frozen=True)
class Ids(Reward):
    """The share of even ids."""

    def __call__(self, rollout):
        return sum(1.0 for i in rollout.ids if i % 2 == 0) / len(rollout.ids)


@register("test_ahead_bomb")
@dataclass(frozen=True)
class Bomb(Callback):
    """Interrupts the run at one step, while `armed`."""

    armed: ClassVar[bool] = False
    step: int = 5

    def __call__(self, run, groups):
        if Bomb.armed and run.step == self.step:
            raise KeyboardInterrupt
        return {}


def config(folder, loop, *more, steps=8):
    base = [
        TINY,
        f"output={folder}",
        "data.train.mine.name=test_ahead_rows",
        "rewards.mine.name=test_ahead_ids",
        f"loop={loop}",
        f"steps={steps}",
    ]
    base += [
        "sampling={name: plain, max_tokens: 4}",
        "prompts_per_step=2",
        "group_size=4",
        "optimizer.lr=1e-2",
        "watch.checkpoint_every=2",
    ]
    return load(
        ["base/rl", "methods/grpo"],
        [*base, "token_weights.engine={name: tis}", "callbacks.bomb.name=test_ahead_bomb", *more],
    )


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights_of(folder):
    return (sorted((folder / "checkpoints").glob("step-*"))[-1] / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("loop", "options", "ages"), [
    ("one_step_off", (), [0, 1, 1, 1, 1, 1, 1, 1]),
    ("asynchronous", ("loop_options={staleness: 2}",), [0, 1, 2, 2, 2, 2, 2, 2]),
])  # fmt: skip
def test_staleness_of_each_step(tmp_path, loop, options, ages):
    train(config(tmp_path, loop, *options), live=False)
    steps = metrics_of(tmp_path)
    assert [step["staleness/max"] for step in steps] == ages and [step["step"] for step in steps] == list(
        range(1, 9)
    )
    assert all(step["rollouts"] == 8 for step in steps)
    timings = [json.loads(line)["seconds"] for line in (tmp_path / "timings.jsonl").read_text().splitlines()]
    assert all({"collect", "idle", "learn", "sync"} <= set(seconds) for seconds in timings)
    done = json.loads((tmp_path / "summary.json").read_text())["overlap"]
    assert done["trainer_idle"] >= done["engine_busy"] > 0 and done["saved"] == 0, (
        "in turn, nothing is hidden"
    )


@pytest.mark.parametrize("loop", ["one_step_off", "asynchronous"])
def test_a_resumed_run_equals_an_undisturbed_one(tmp_path, loop):
    train(config(tmp_path / "whole", loop), live=False)
    Bomb.armed = True
    try:
        with pytest.raises(KeyboardInterrupt):
            train(config(tmp_path / "stopped", loop), live=False)
    finally:
        Bomb.armed = False
    train(config(tmp_path / "stopped", loop), resume=True, live=False)
    assert metrics_of(tmp_path / "stopped") == metrics_of(tmp_path / "whole")
    assert weights_of(tmp_path / "stopped") == weights_of(tmp_path / "whole")


FAKE = "engine={name: fake, options: ['ab', 'ba', 'aab', 'b']}"


def test_one_step_off_is_the_same_with_and_without_a_thread(tmp_path, monkeypatch):
    train(config(tmp_path / "threads", "one_step_off", FAKE), live=False)
    monkeypatch.setattr(loops, "can_overlap", lambda session: False)
    train(config(tmp_path / "turns", "one_step_off", FAKE), live=False)
    assert metrics_of(tmp_path / "threads") == metrics_of(tmp_path / "turns")
    assert weights_of(tmp_path / "threads") == weights_of(tmp_path / "turns")


def test_seconds_saved(tmp_path):
    assert loops.overlap_seconds(tmp_path) == {}
    steps = [
        {"step": 5.0, "collect": 4.0, "idle": 4.0},
        {"step": 3.0, "collect": 4.0, "idle": 1.0},
        {"step": 1.0},
    ]
    (tmp_path / "timings.jsonl").write_text(
        "".join(json.dumps({"step": i, "seconds": s}) + "\n" for i, s in enumerate(steps))
    )
    assert loops.overlap_seconds(tmp_path) == {
        "engine_busy": 8.0,
        "engine_idle": 0.0,
        "trainer_busy": 3.0,
        "trainer_idle": 5.0,
        "saved": 3.0,
    }


def test_threads_keep_the_staleness_bound_and_lose_no_row(tmp_path):
    train(
        config(tmp_path, "asynchronous", FAKE, "loop_options={staleness: 3}", "watch.rollouts_every=1"),
        live=False,
    )
    steps = metrics_of(tmp_path)
    assert len(steps) == 8 and max(step["staleness/max"] for step in steps) <= 3
    import pyarrow.parquet as pq

    rows = [
        row
        for file in sorted((tmp_path / "rollouts").glob("*.parquet"))
        for row in pq.read_table(file).to_pylist()
    ]
    name = next(key for key in rows[0] if key in ("row", "row_id", "id"))
    seen = [row[name] for row in rows]
    assert len(seen) == 8 * 8
    assert sorted(set(seen)) == sorted(f"r{i}" for i in range(12)), (
        "one epoch of 12 rows in the first 6 steps: none skipped"
    )
    assert all(seen[:48].count(f"r{i}") == 4 for i in range(12))


def test_errors_of_the_thread_are_raised(tmp_path):
    with pytest.raises(ConfigError, match="staleness"):
        train(config(tmp_path / "a", "asynchronous", "loop_options={staleness: 0}"), live=False)
    with pytest.raises(ConfigError, match="takes none"):
        train(config(tmp_path / "b", "one_step_off", "loop_options={staleness: 1}"), live=False)
