"""Many episodes with processes of their own among hanging and crashing tools; a run that was killed repeats
none of them."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from reliability_kit import ROOT
from run_kit import View

from benchmarks import episodes as bench
from vlrl.engine.fake import Fake
from vlrl.logging.recorder import Recorder
from vlrl.methods.core.rollout import MultiTurn
from vlrl.methods.core.sampling import Plain
from vlrl.plugins.episodes import EPISODE_END, Trajectory
from vlrl.plugins.registry import build
from vlrl.policy import Family, Policy
from vlrl.services.files import TRAJECTORIES, append_jsonl, read_jsonl
from vlrl.services.reaper import REAPER
from vlrl.trainer.step.scoring import RewardError
from vlrl.types import Prompt, Row


@pytest.fixture(scope="module")
def policy():
    return Policy(
        build(
            Family,
            {
                "name": "text",
                "tiny": {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 32},
            },
        )
    )


def make_run(policy, environment, output=None, error_limit=0.3):
    run = View(
        step=4,
        policy=policy,
        sampling=Plain(max_tokens=60),
        settings=SimpleNamespace(error_limit=error_limit),
        engine=Fake(function=lambda request, index: f"go {request.seed}"),
        environment=environment,
        output=output,
    )
    run.engine.setup(run)
    return run


def prompts(count):
    return [
        Prompt(row=Row(f"r{i}", "Play."), messages=({"role": "user", "content": "Play."},))
        for i in range(count)
    ]


def settled(done, seconds=10.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until and not done():
        time.sleep(0.02)
    return done()


def test_160_tools_in_processes_of_which_some_hang_and_some_die(policy, monkeypatch, tmp_path):
    monkeypatch.setenv("BENCH_EPISODES", tmp_path.name)
    REAPER.remove(REAPER.folder())  # its helper process is there from the beginning
    files, threads, known = len(os.listdir("/proc/self/fd")), threading.active_count(), set(REAPER.folders)
    run = make_run(
        policy, bench.BenchShell(concurrency=32, turn_seconds=3.0, retries=0, record=1000), tmp_path
    )
    groups = MultiTurn(max_turns=4, patience=0.05)(prompts(20), [8] * 20, run)
    ends = {
        name.removeprefix("environment/end/"): count for name, count in run.counts.items() if "/end/" in name
    }
    assert set(ends) == {"done", "error"} and sum(ends.values()) == 160 and 3 <= ends["error"] <= 30, ends
    done = [rollout for group in groups for rollout in group]
    assert (
        len(done) == ends["done"]
        and {EPISODE_END[rollout] for rollout in done} == {"done"}
        and run.score_counts.errors == ends["error"]
    )
    assert settled(lambda: not bench.tools() and set(REAPER.folders) == known and not REAPER.processes)
    assert settled(lambda: threading.active_count() <= threads and len(os.listdir("/proc/self/fd")) <= files)
    recorded = read_jsonl(tmp_path / TRAJECTORIES)
    assert Counter(row["end"] for row in recorded) == ends and {row["step"] for row in recorded} == {4}


def test_failures_that_come_before_the_scores_are_a_share_of_all_episodes(policy):
    """Of 16 episodes 3 crash in the first round, in the first step: 0.19 of them, not all of what is known so
    far."""

    class Crashing(bench.BenchShell):
        def episode(self):
            return Scene()

    class Scene(bench.Episode):
        def reset(self, row, seed):
            self.row = row.id
            return bench.Observation()

        def step(self, action):
            if self.row in ("r0", "r1", "r2"):
                raise ConnectionError("gone")
            return bench.Observation(done=True)

    run = make_run(policy, Crashing(retries=0), error_limit=0.2)
    groups = MultiTurn()(prompts(16), [1] * 16, run)
    assert sum(len(group) for group in groups) == 13 and run.score_counts.errors == 3
    with pytest.raises(RewardError, match="3 of 16 rollouts could not be scored"):
        MultiTurn()(prompts(16), [1] * 16, make_run(policy, Crashing(retries=0), error_limit=0.18))


def test_a_resumed_run_keeps_the_episodes_of_its_checkpoint_alone(tmp_path):
    for step in (1, 2, 2, 3, 4):
        append_jsonl(tmp_path / TRAJECTORIES, {"step": step, **Trajectory(f"r{step}", 0).plain()})
    with (tmp_path / TRAJECTORIES).open("a") as file:
        file.write('{"step": 5, "row"')
    for ahead, steps in ((2, [1, 2, 2, 3, 4]), (1, [1, 2, 2, 3]), (0, [1, 2, 2])):
        recorder = Recorder(tmp_path, {})
        recorder.rewind(2, ahead=ahead)
        recorder.close()
        assert [row["step"] for row in read_jsonl(tmp_path / TRAJECTORIES)] == steps


def test_the_measurement_finds_what_is_lost_or_repeated(tmp_path):
    options = SimpleNamespace(prompts=1, steps=2)
    for step in (1, 2):
        metrics = {
            "step": step,
            "phase": "main",
            "environment/episodes": 8.0,
            "environment/end/done": 7.0,
            "environment/end/error": 1.0,
        }
        append_jsonl(tmp_path / "metrics.jsonl", {**metrics, "reward/errors": float(step)})
        used = {
            "mb": 100.0,
            "files": 7,
            "threads": 2,
            "cpu": 1.0,
            "children_cpu": 0.0,
            "folders": 0,
            "tools": 0,
        }
        append_jsonl(tmp_path / bench.PROCESS, {"pid": 1, "step": step, **used})
        for number in range(8):
            append_jsonl(tmp_path / TRAJECTORIES, {"step": step, **Trajectory(f"r{number}", 0).plain()})
    figures, wrong = bench.check(tmp_path, options)
    assert wrong == [] and (figures["end/done"], figures["end/error"]) == (14.0, 2.0)
    append_jsonl(tmp_path / TRAJECTORIES, {"step": 2, **Trajectory("r0", 0).plain()})
    append_jsonl(tmp_path / bench.PROCESS, {"pid": 1, "step": 3, **used, "folders": 1})
    _, wrong = bench.check(tmp_path, options)
    assert len(wrong) == 2 and "recorded episodes per step" in wrong[0] and "folders" in wrong[1]
    assert max(bench.episodes(tmp_path).values()) == 2
    rows = [{"mb": 100.0 + step} for step in range(16)]
    assert bench.change(rows, "mb") == 8.0, "medians of 12..15 and 4..7"


@pytest.mark.slow
def test_a_killed_run_holds_the_same_episodes():
    settings = [
        "--steps",
        "3",
        "--prompts",
        "4",
        "--kill-every",
        "2",
        "--turn-seconds",
        "3",
        "--patience",
        "6",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.episodes", *settings],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=ROOT,
    )
    assert done.returncode == 0 and "0 lost, 0 that the other run has not" in done.stdout, (
        done.stdout + done.stderr[-2000:]
    )


def test_steps_are_recorded_as_they_are_counted(policy, tmp_path):
    """`record` bounds what a sampling writes."""
    run = make_run(policy, bench.BenchShell(turn_seconds=10.0, retries=0, record=2), tmp_path)
    MultiTurn(max_turns=4)(prompts(2), [2, 2], run)
    rows = [json.loads(line) for line in (tmp_path / TRAJECTORIES).read_text().splitlines()]
    assert len(rows) == 2 and all(row["steps"] and row["end"] in ("done", "error") for row in rows)
