"""Loops that collect ahead on two real ranks: the collecting threads gather while the trainer is in
collectives of its own."""

import json
import sys
from pathlib import Path

import pytest
from ranks_kit import HERE

from vlrl.config import load
from vlrl.training import train

CONFIGS = ("base/rl", "methods/grpo", "tasks/lab_arithmetic")
WORDS = (
    "engine.name=slow_fake", "sampling.max_tokens=6", "prompts_per_step=4", "group_size=4",
    "policy={name: text, tiny: {hidden: 32, layers: 1, heads: 2, kv_heads: 1, intermediate: 64}}",
    "optimizer.lr=1e-3", "steps=5",
    "rewards={any: {name: hash_of_tokens, weight: 1.0}}", f"plugins=[{HERE / 'hash_reward.py'}]",
    "watch.checkpoint_every=0", "watch.live=false",
    "loop=asynchronous", "loop_options={staleness: 2}",
)  # fmt: skip


@pytest.mark.deepspeed
@pytest.mark.timeout(900)
def test_two_ranks_that_collect_ahead_learn_what_one_does(tools, tmp_path: Path) -> None:
    run, _, launcher, metrics = tools
    train(load(CONFIGS, [*WORDS, f"output={tmp_path / 'alone'}"]), live=False)
    run(
        [
            sys.executable,
            *launcher("ddp"),
            "-m",
            "vlrl",
            "train",
            *CONFIGS,
            *WORDS,
            f"output={tmp_path / 'ddp'}",
        ]
    )
    alone, two = metrics(tmp_path / "alone"), metrics(tmp_path / "ddp")
    assert [line["step"] for line in two] == [1, 2, 3, 4, 5]
    for one, other in zip(alone, two, strict=True):
        for key in ("groups", "tokens", "reward/any", "grad_norm"):
            assert other[key] == pytest.approx(one[key], rel=1e-3), key
    overlap = json.loads((tmp_path / "ddp" / "summary.json").read_text())["overlap"]
    assert overlap["engine_busy"] >= 1.5 and overlap["saved"] > 0, (
        "batches were collected while the trainer worked"
    )
