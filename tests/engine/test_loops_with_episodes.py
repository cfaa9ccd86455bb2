"""Loops that collect ahead keep multi-turn episodes over a restart: pictures that an environment made,
prompts that go on from tokens. What cannot be kept is drawn again; no row is lost."""

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from vlrl.config import load
from vlrl.plugins.episodes import Episode, Observation, Picture
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Callback, Environment, Reward, Source
from vlrl.trainer.pipeline import loops
from vlrl.training import train
from vlrl.types import Group, Row

TINY = (
    "policy={name: qwen2_5_vl, tiny: {hidden: 16, layers: 1, heads: 2, kv_heads: 1, intermediate: 32, "
    "vision_hidden: 16, vision_layers: 1}, max_pixels: 3136}"
)


@register("test_episode_rows")
@dataclass(frozen=True, kw_only=True)
class Rows(Source):
    """Twelve questions."""

    def __call__(self):
        return [Row(f"r{i}", f"Pick {i}", answer="7") for i in range(12)]


@dataclass
class Looking(Episode):
    """Shows a picture that depends on the turn and on what was said."""

    row: Row | None = None
    turn: int = 0

    def reset(self, row, seed):
        self.row = row
        return Observation("Look.")

    def step(self, action):
        self.turn += 1
        pixels = np.full((28, 28, 3), (len(action.text) * 7 + self.turn * 31) % 255, np.uint8)
        return Observation(f"turn {self.turn}", (Picture.of(pixels),), calls=1, parts={"a": 0.5}, reward=0.5)


@register("test_looking")
@dataclass(frozen=True, kw_only=True)
class LookingEnvironment(Environment):
    """An environment of pictures."""

    stops: ClassVar[tuple[str, ...]] = tuple("abcdefghijklmnopqrstuvwxyz ")  # so that a random turn ends soon

    def episode(self):
        return Looking()


@register("test_episode_ids")
@dataclass(frozen=True)
class Ids(Reward):
    """The share of even ids."""

    def __call__(self, rollout):
        return sum(1.0 for i in rollout.ids if i % 2 == 0) / len(rollout.ids)


@register("test_episode_bomb")
@dataclass(frozen=True)
class Bomb(Callback):
    """Interrupts the run at step 5, while `armed`, and lists the rows of every step."""

    armed: ClassVar[bool] = False
    seen: ClassVar[list] = []

    def __call__(self, run, groups):
        Bomb.seen.append((run.step, [group.row.id for group in groups]))
        if Bomb.armed and run.step == 5:
            raise KeyboardInterrupt
        return {}


def config(folder, loop):
    return load(
        ["base/rl", "methods/grpo"],
        [TINY, f"output={folder}", "data.train.mine.name=test_episode_rows", f"loop={loop}", "steps=8",
         "rewards.mine.name=test_episode_ids", "sampling={name: plain, max_tokens: 24}", "prompts_per_step=2",
         "group_size=2", "optimizer.lr=1e-2", "watch.checkpoint_every=2", "environment={name: test_looking}",
         "rollout={name: multi_turn, max_turns: 3}", "token_weights.engine={name: tis}",
         "callbacks.bomb.name=test_episode_bomb"],
    )  # fmt: skip


def stopped_and_resumed(folder, loop):
    Bomb.armed = True
    try:
        with pytest.raises(KeyboardInterrupt):
            train(config(folder, loop), live=False)
    finally:
        Bomb.armed = False
    train(config(folder, loop), resume=True, live=False)


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("loop", ["synchronous", "one_step_off", "asynchronous"])
def test_a_resumed_run_of_episodes_equals_an_undisturbed_one(tmp_path, loop):
    train(config(tmp_path / "whole", loop), live=False)
    stopped_and_resumed(tmp_path / "stopped", loop)
    whole, stopped = metrics_of(tmp_path / "whole"), metrics_of(tmp_path / "stopped")
    assert whole == stopped and len(whole) == 8
    assert sum(step["environment/calls"] for step in whole) >= 16
    events = tmp_path / "stopped" / "events.jsonl"
    warnings = events.read_text() if events.is_file() else ""
    assert "cannot be saved" not in warnings and "sampled anew" not in warnings


def test_rows_of_batches_that_cannot_be_saved_are_drawn_again(tmp_path, monkeypatch):
    def refuses(group):
        raise ValueError("of this test")

    monkeypatch.setattr(Group, "to_plain", refuses)
    Bomb.seen.clear()
    train(config(tmp_path / "whole", "asynchronous"), live=False)
    whole = dict(Bomb.seen)
    Bomb.seen.clear()
    stopped_and_resumed(tmp_path / "stopped", "asynchronous")
    assert dict(Bomb.seen) == whole and len(whole) == 8
    assert "samples their rows anew" in (tmp_path / "stopped" / "events.jsonl").read_text()
    assert loops.LOOPS.keys() == {"synchronous", "one_step_off", "asynchronous"}
