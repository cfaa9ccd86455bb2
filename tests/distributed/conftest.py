import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks_kit import ENVIRONMENT, HERE, ROOT


def command(launcher: list[str], output: Path, *more: str, config: str = "mixed.yaml") -> list[str]:
    return [
        sys.executable,
        *launcher,
        "-m",
        "vlrl",
        "train",
        str(HERE / config),
        f"output={output}",
        f"plugins=[{HERE / 'hash_reward.py'}]",
        *more,
    ]


def launcher(engine: str, processes: int = 2) -> list[str]:
    """The arguments of `accelerate launch` with one of the shipped configs, on this machine's CPU."""
    return [
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        str(ROOT / "configs" / "accelerate" / f"{engine}.yaml"),
        "--num_processes",
        str(processes),
        "--main_process_port",
        "0",
    ]


@pytest.fixture(scope="session")
def run(warm) -> Callable[[list[str]], str]:
    """`python ARGUMENTS[1:]` in a process that has imported the trainer already, and so its ranks; gives back
    what it printed."""

    def start(arguments: list[str]) -> str:
        done = subprocess.run(
            [warm, *arguments[1:]],
            cwd=ROOT,
            env={**ENVIRONMENT, "PYTHON_EXEC": warm},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
        return done.stdout

    return start


def metrics(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def alone(run, tmp_path_factory) -> Path:
    """The folder of a run of one process."""
    output = tmp_path_factory.mktemp("alone") / "run"
    run(command([], output))
    return output


@pytest.fixture
def tools(run):
    return run, command, launcher, metrics
