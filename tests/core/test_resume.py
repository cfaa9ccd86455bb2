"""A run that is killed at any moment and resumed gives the same metrics and weights, bit for bit, as one that
is not."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vlrl.config import load
from vlrl.plugins.registry import ConfigError
from vlrl.training import train

SMALL = str(Path(__file__).parent / "small.yaml")


def start(output, *more, python=sys.executable):
    command = [python, "-m", "vlrl", "train", SMALL, f"output={output}", "--quiet", *more]
    usual = {
        name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"
    }  # a user has not set it, and DeepSpeed says so
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**usual, "OMP_NUM_THREADS": "1"}
    )


def metrics_of(folder):
    return (folder / "metrics.jsonl").read_text()


def weights_of(folder):
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    return last.name, (last / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    summary = train(load([SMALL], [f"output={folder}"]), live=False)
    return folder, summary


def test_a_probe_states_its_finding_once_at_the_end_also_after_a_resume(tmp_path):
    folder = tmp_path / "run"
    probes = ["metrics.spread={name: vb_vs_vf_theory}", "metrics.passk={name: pass_at_k}"]
    summary = train(load([SMALL], [f"output={folder}", *probes]), live=False)
    said = summary["findings"]
    assert list(said) == ["metrics.spread"] and "standard deviation" in said["metrics.spread"]["text"]

    def events():
        lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        return [line for line in lines if line["kind"] == "finding"]

    assert [(line["slot"], line["text"]) for line in events()] == [
        ("metrics.spread", said["metrics.spread"]["text"])
    ]
    again = train(load([SMALL], [f"output={folder}", *probes]), resume=True, live=False)
    assert again["findings"] == said and said["metrics.spread"]["text"] in Path(again["report"]).read_text()


def test_the_summary_says_where_everything_is(undisturbed):
    folder, summary = undisturbed
    said = json.loads((folder / "summary.json").read_text())
    assert said == summary and said["steps"] == 9
    assert set(said["heldout"]) == {"start", "final"} and set(said["heldout"]["final"]) == {"digits"}
    assert {"cold_start", "rl", "total"} <= set(said["seconds"])
    assert Path(said["checkpoint"]).is_dir() and Path(said["report"]).read_text().startswith("<!")
    assert len(list((folder / "checkpoints").iterdir())) == 2  # the last two are kept
    steps = [json.loads(line) for line in metrics_of(folder).splitlines()]
    assert [line["step"] for line in steps] == list(range(1, 10))
    assert {"reward/total", "loss", "entropy", "kl", "grad_norm", "length/mean", "engine/kl"} <= set(
        steps[-1]
    )
    assert steps[-1]["engine/kl"] < 1e-3


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_at_random_moments_and_resumed(undisturbed, warm, tmp_path, kills):
    folder = tmp_path / "killed"
    pick = random.Random(time.time_ns())
    for kill in range(kills):
        process = start(folder, *(["--resume"] if kill else []), python=warm)
        lines = min(pick.randrange(1, 5) + 3 * kill, 8)
        deadline = time.time() + 400
        while time.time() < deadline and process.poll() is None:
            done = len(metrics_of(folder).splitlines()) if (folder / "metrics.jsonl").exists() else 0
            if done >= lines:
                time.sleep(pick.random() * 0.3)
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.01)
        process.communicate()
    process = start(folder, "--resume", "--json", python=warm)
    out, err = process.communicate(timeout=480)
    assert process.returncode == 0, err.decode()[-2000:]
    assert metrics_of(folder) == metrics_of(undisturbed[0])
    assert weights_of(folder) == weights_of(undisturbed[0])
    resumed, whole = json.loads(out), undisturbed[1]
    assert resumed["heldout"] == whole["heldout"] and resumed["steps"] == whole["steps"]


def test_another_seed_gives_another_file_and_a_finished_run_is_not_overwritten(undisturbed, tmp_path):
    folder = tmp_path / "other"
    config = load([SMALL], [f"output={folder}", "seed=1", "phases.cold_start.steps=1", "phases.rl.steps=1"])
    train(config, live=False)
    assert metrics_of(folder).splitlines()[0] != metrics_of(undisturbed[0]).splitlines()[0]
    with pytest.raises(ConfigError, match="already holds a run; go on with --resume"):
        train(config, live=False)


def test_a_finished_run_resumes_to_itself(undisturbed):
    folder, summary = undisturbed
    again = train(load([SMALL], [f"output={folder}"]), resume=True, live=False)
    assert again["heldout"] == summary["heldout"] and metrics_of(folder).count("\n") == 9
