"""Training with the real vLLM (CPU build): in process, and with a server whose worker is killed during the
run."""

import json
import math
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass

import pytest

from vlrl.config import load
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Callback, Reward
from vlrl.training import train

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
]  # a server's start takes a minute on a busy machine, and there are two

SHORT = [
    "data.heldout=null",
    "rewards.even.name=test_even_ids",
    "watch.rollouts_every=1",
    "phases.cold_start.steps=3",
    "phases.cold_start.prompts_per_step=8",
    "phases.rl.prompts_per_step=4",
    "phases.rl.group_size=8",
]


@register("test_even_ids")
@dataclass(frozen=True)
class EvenIds(Reward):
    """The share of even ids: rewards differ within nearly every group, also before the model has learned the
    task."""

    def __call__(self, rollout):
        return sum(1.0 for i in rollout.ids if i % 2 == 0) / len(rollout.ids)


def metrics_of(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["phase"] == "rl"]


def assert_every_rollout_once(folder, steps):
    """Every step has four prompts of eight completions, each stored once and counted once."""
    import pyarrow.parquet as pq

    metrics = metrics_of(folder)
    assert len(metrics) == steps
    for row in metrics:
        table = pq.read_table(folder / "rollouts" / f"step-{row['step']:06d}.parquet").to_pylist()
        assert Counter(r["group"] for r in table) == dict.fromkeys({r["group"] for r in table}, 8)
        assert (
            len({(r["group"], r["index"]) for r in table})
            == len(table)
            == row["rollouts"]
            == row["engine/completions"]
            == 32
        )
        assert (
            len({r["id"] for r in table}) == 4
            and sum(r["length"] for r in table) == row["tokens"] == row["engine/tokens"]
        )
        assert all(
            math.isfinite(row[name])
            for name in ("loss", "grad_norm", "reward/total", "length/mean", "engine/kl")
        )
        assert row["engine/kl"] < 1e-4, "sampled with the weights that are trained, all of them"
    assert [row["engine/syncs"] for row in metrics] == [2, *[1] * (steps - 1)], (
        "once more where the phase begins"
    )


@pytest.mark.parametrize("adapter", [(), ("trainable={name: lora, r: 3}", "engine.lora=true")])
def test_the_quickstart_through_vllm(tmp_path, adapter):
    pytest.importorskip("vllm")
    train(
        load(["experiments/quickstart_vllm"], [*SHORT, *adapter, "phases.rl.steps=3", f"output={tmp_path}"]),
        live=False,
    )
    assert_every_rollout_once(tmp_path, 3)


@register("test_killer")
@dataclass(frozen=True)
class Killer(Callback):
    """Before step `step` waits for its first completion to arrive, then kills the server's workers, or with
    `whole` its own process."""

    step: int
    whole: bool = False

    def __call__(self, run, groups):
        if run.step + 1 == self.step:
            threading.Thread(target=self.kill, args=(run.engine,), daemon=True).start()
        return {}

    def kill(self, engine):
        import psutil

        process = psutil.Process(engine.state.servers[0][0].process.pid)
        workers = [
            child for child in process.children(recursive=True) if "EngineCore" in " ".join(child.cmdline())
        ]
        victims = [process] if self.whole else workers
        assert workers
        before = engine.counters["completions"]
        while engine.counters["completions"] == before:
            time.sleep(0.001)
        for victim in victims:
            os.kill(victim.pid, 9)


@pytest.mark.slow
def test_killing_a_servers_worker_loses_no_rollout(tmp_path):
    pytest.importorskip("vllm")
    more = [
        "phases.rl.steps=3",
        "engine.parallel=1",
        "watch.checkpoint_every=0",
        f"output={tmp_path}",
    ]  # one request at a time: most are still to come
    # add `whole: true` to kill the server itself
    killer = "phases.rl.callbacks.killer={name: test_killer, step: 5}"
    train(load(["experiments/quickstart_vllm_server"], [*SHORT, *more, killer]), live=False)
    assert_every_rollout_once(tmp_path, 3)
    assert [row["engine/replaced"] for row in metrics_of(tmp_path)] == [0, 1, 0]
