"""Real processes: two ranks give the losses of one, under every engine; a dead rank ends the job, and another
number of ranks goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from ranks_kit import ENVIRONMENT, ROOT

pytestmark = pytest.mark.deepspeed


def verify_alike(some: list[dict], others: list[dict]) -> None:
    """The same rows, completions, losses, gradients: nothing lost, nothing twice, the optimizer as it was."""
    assert [line["step"] for line in some] == [line["step"] for line in others] == [1, 2, 3, 4, 5]
    for one, two in zip(some, others):
        assert two["groups"] == one["groups"] and two["tokens"] == one["tokens"]
        assert two["length/mean"] == pytest.approx(one["length/mean"])
        assert two.get("reward/any") == pytest.approx(one.get("reward/any"))  # a hash of the tokens
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4, abs=1e-6)
        assert two["entropy"] == pytest.approx(one["entropy"], rel=1e-5)
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)


def forget(output: Path, after: int) -> Path:
    """The run as if it had been stopped at a step."""
    for folder in (output / "checkpoints").glob("step-*"):
        if int(folder.name[5:]) > after:
            shutil.rmtree(folder)
    return output


@pytest.mark.parametrize(
    "engines",
    [
        ("zero2", "fsdp2"),
        *(pytest.param((one,), marks=pytest.mark.slow) for one in ("ddp", "zero3", "fsdp2")),
    ],
)
def test_one_process_two_ranks_and_one_again_learn_what_one_does(
    engines: tuple[str, ...], alone: Path, tools, tmp_path: Path
) -> None:
    """After step 1, in the middle of the cold start, two ranks; after step 3 two ranks of the next kind, at
    last one process. One update of the second phase is done then: the fifth step's loss shows its moments."""
    run, command, launcher, metrics = tools
    output = tmp_path / "run"
    shutil.copytree(alone, output)
    for place, launch in enumerate((*(launcher(engine) for engine in engines), [])):
        run(command(launch, forget(output, after=3 if place else 1), "--resume"))
        verify_alike(metrics(alone), metrics(output))


@pytest.mark.slow
def test_zero3_ranks_with_different_numbers_of_logit_chunks_learn_what_one_does(
    alone: Path, tools, tmp_path: Path
) -> None:
    """Every weight is a share, as those of models of release size are: a small one would be kept whole."""
    run, command, launcher, metrics = tools
    config = json.loads((ROOT / "configs/deepspeed/zero3.json").read_text())
    config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    (tmp_path / "zero3.json").write_text(json.dumps(config))
    launch = (ROOT / "configs/accelerate/zero3.yaml").read_text()
    path = tmp_path / "zero3.yaml"
    path.write_text(launch.replace("configs/deepspeed/zero3.json", str(tmp_path / "zero3.json")))
    words = launcher("zero3")
    words[words.index("--config_file") + 1] = str(path)
    run(command(words, tmp_path / "run", "policy.chunk=2"))
    verify_alike(metrics(alone), metrics(tmp_path / "run"))


def rank_of(pid: int) -> str | None:
    try:
        items = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((item.split(b"=")[1].decode() for item in items if item.startswith(b"RANK=")), None)


def children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


@pytest.mark.slow
def test_a_dead_rank_ends_the_job_and_one_process_goes_on(tools, tmp_path: Path) -> None:
    run, command, launcher, metrics = tools
    output = tmp_path / "run"
    more = ["phases.rl.steps=40"]
    with (tmp_path / "log").open("w") as log:
        job = subprocess.Popen(
            command(launcher("ddp"), output, *more), cwd=ROOT, env=ENVIRONMENT, stdout=log, stderr=log
        )
        deadline = time.time() + 300
        while (
            not list((output / "checkpoints").glob("step-000003"))
            and time.time() < deadline
            and job.poll() is None
        ):
            time.sleep(0.2)
        victim = next(pid for pid in children(job.pid) if rank_of(pid) == "1")
        os.kill(victim, signal.SIGKILL)
        assert job.wait(timeout=120) != 0
    said = (tmp_path / "log").read_text()
    assert "exitcode: -9" in said or "Signal 9" in said
    done = len(metrics(output))
    assert 3 <= done < 42
    run(command([], output, "phases.rl.steps=40", f"phases.rl.prompts_per_step={3}", "--resume"))
    assert [line["step"] for line in metrics(output)] == list(range(1, 43))
