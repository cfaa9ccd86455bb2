"""Two real ranks: one is killed, stopped or out of memory, in sampling, in a step or while writing a
checkpoint. All ranks end in a bounded time with one line, and the run that goes on ends as the undisturbed
one. A signal stops both ranks at the same step.

One run of DDP meets a signal, a killed rank and a killed launcher in turn; `-m slow` has all troubles,
and each alone at each place, also with ZeRO.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from reliability_kit import CONFIGS, ENVIRONMENT, ROOT, WORDS, steps_of, verify_equal

from vlrl.services.files import read_jsonl
from vlrl.trainer.checkpoints import checkpoint

pytestmark = pytest.mark.deepspeed

TIMEOUT = 8  # watch.rank_timeout, seconds
BOUND = 240  # about 45 on an idle machine; torch's launcher waits 30 seconds before it kills a stopped rank
MORE = [
    *(
        f"plugins=[{ROOT / 'tests' / 'reliability' / 'trouble.py'}]",
        "rewards.any={name: troubled}",
        "engine={name: hf_with_trouble}",
    ),
    "steps=24",
    *(f"watch.rank_timeout={TIMEOUT}", "watch.checkpoint_every=4"),
]


def launch(
    output: Path, log: Path, folder: Path, *words: str, sharding: str = "ddp", python: str = sys.executable
) -> subprocess.Popen:
    """`vlrl train --processes 2`, its output in a file."""
    command = [
        python,
        "-m",
        "vlrl",
        "train",
        *CONFIGS,
        *WORDS,
        *MORE,
        f"output={output}",
        "--processes",
        "2",
        "--sharding",
        sharding,
        *words,
    ]
    with log.open("w") as file:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**ENVIRONMENT, "TROUBLE": str(folder), "PYTHON_EXEC": python},
            stdout=file,
            stderr=file,
        )


@pytest.fixture(scope="module")
def finish(warm) -> Callable[..., None]:
    """A run that nothing happens to: its ranks need no start of Python of their own."""

    def run(output: Path, log: Path, folder: Path, *words: str, sharding: str = "ddp") -> None:
        job = launch(output, log, folder, *words, sharding=sharding, python=warm)
        assert job.wait(timeout=900) == 0, log.read_text()[-3000:]

    return run


def lines_of(log: Path) -> list[str]:
    """Our own lines."""
    return [line for line in log.read_text().splitlines() if line.startswith("vlrl: ")]


def wait_for(condition, job: subprocess.Popen, log: Path, seconds: float = 600) -> None:
    deadline = time.time() + seconds
    while not condition():
        assert job.poll() is None and time.time() < deadline, log.read_text()[-3000:]
        time.sleep(0.01)


def ranks_of(output: Path) -> dict[int, int]:
    """rank -> pid of the ranks that write to a folder."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            environment, words = (
                (place / "environ").read_bytes().split(b"\0"),
                (place / "cmdline").read_bytes(),
            )
        except OSError:
            continue
        rank = next((item[5:] for item in environment if item.startswith(b"RANK=")), None)
        if rank is not None and f"output={output}".encode() in words:
            found[int(rank)] = int(place.name)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, finish) -> Callable[[str], Path]:
    """The run that nothing happens to, of a sharding."""
    runs: dict[str, Path] = {}

    def run(sharding: str = "ddp") -> Path:
        if sharding not in runs:
            folder = tmp_path_factory.mktemp(sharding)
            finish(folder / "run", folder / "log", folder, sharding=sharding)
            runs[sharding] = folder / "run"
        return runs[sharding]

    return run


def verify_end(undisturbed: Path, output: Path) -> None:
    """The run ended as the undisturbed one; nothing is lost and nothing is there twice."""
    verify_equal(undisturbed, output)
    assert [row["name"] for row in read_jsonl(output / "events.jsonl") if row["kind"] == "heldout"] == [
        "start",
        "final",
    ]


def verify_resumed(
    finish: Callable[..., None], undisturbed: Path, output: Path, tmp_path: Path, sharding: str = "ddp"
) -> None:
    """The run goes on with two ranks to the end of the undisturbed one."""
    finish(output, tmp_path / "resumed", tmp_path, "--resume", sharding=sharding)
    verify_end(undisturbed, output)


def make_trouble(
    kind: str, place: str, output: Path, folder: Path, job: subprocess.Popen, log: Path, after: int = 6
) -> None:
    """After some steps, rank 1 meets the trouble, and stays where it is."""
    wait_for(lambda: steps_of(output) >= after, job, log)
    (folder / f"{kind}-{place}").write_text("1")
    wait_for((folder / f"{kind}-{place}.seen").exists, job, log)
    (folder / f"{kind}-{place}").unlink()
    (folder / f"{kind}-{place}.seen").unlink()


def verify_a_lost_rank_ends_all(
    job: subprocess.Popen, output: Path, log: Path, folder: Path, number: int, place: str, after: int = 6
) -> None:
    """Rank 1 gets a signal while it is at `place`: all ranks end, with one line that names it."""
    make_trouble("sleep", place, output, folder, job, log, after)
    ranks = ranks_of(output)
    os.kill(ranks[1], number)
    begun = time.time()
    assert job.wait(timeout=BOUND + 30) != 0
    assert time.time() - begun < BOUND
    said = [line for line in lines_of(log) if "rank 1" in line]
    assert len(said) == 1, log.read_text()[-3000:]
    assert (
        f"rank 1 (pid {ranks[1]} on" in said[0]
        and "does not answer: killed, stopped, out of memory" in said[0]
        and "--resume" in said[0]
    )
    assert "Traceback" not in log.read_text()
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks.values())


def verify_no_memory_ends_all(
    job: subprocess.Popen, output: Path, log: Path, folder: Path, place: str, after: int = 6
) -> None:
    """Rank 1 is out of memory at `place`: it says so and what to do, and all ranks end."""
    wait_for(lambda: steps_of(output) >= after, job, log)
    (folder / f"memory-{place}").write_text("1")
    begun = time.time()
    assert job.wait(timeout=BOUND + 30) != 0 and time.time() - begun < BOUND
    (folder / f"memory-{place}").unlink()
    said, whole = lines_of(log), log.read_text()[-3000:]
    assert (
        len(said) == 1
        and "rank 1, step" in said[0]
        and "out of memory" in said[0]
        and "lower micro_batch_tokens" in said[0]
    ), whole
    assert "Traceback" not in log.read_text()


def verify_a_signal_stops_all(job: subprocess.Popen, output: Path, log: Path, after: int = 5) -> None:
    """SIGTERM to the launcher: both ranks end after the same step, with its checkpoint."""
    wait_for(lambda: steps_of(output) >= after, job, log)
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=BOUND) == 75, log.read_text()[-3000:]
    step = steps_of(output)
    assert (
        step < 24 and checkpoint.newest_intact(output)[0] == output / checkpoint.FOLDER / f"step-{step:06d}"
    )
    said = [line for line in lines_of(log) if "its checkpoint is" in line]
    assert len(said) == 1 and f"after step {step}" in said[0]


def alive(pids: Iterable[int]) -> list[int]:
    """Processes that are there and no zombies."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        found += [pid] if state not in "ZX" else []
    return found


def wait_until_gone(pids: Iterable[int], seconds: float = BOUND) -> None:
    until = time.time() + seconds
    while alive(pids):
        assert time.time() < until, alive(pids)
        time.sleep(0.1)


def verify_a_lost_launcher_ends_all(
    job: subprocess.Popen, output: Path, log: Path, number: int, after: int
) -> None:
    """A signal that the launcher cannot pass on: the ranks end with a checkpoint of their last step."""
    wait_for(lambda: steps_of(output) >= after, job, log)
    ranks = ranks_of(output)
    job.send_signal(number)
    job.wait(timeout=BOUND)
    wait_until_gone(ranks.values())
    step = steps_of(output)
    assert step < 24, "it ran on to its end"
    newest, notes = checkpoint.newest_intact(output)
    assert newest is not None and newest.name == f"step-{step:06d}" and not notes, log.read_text()[-3000:]


@pytest.mark.timeout(2400)  # up to seven starts of two ranks
@pytest.mark.parametrize("count", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_a_run_with_troubles_in_turn_ends_as_the_undisturbed_one(
    finish, undisturbed, warm, tmp_path, count
) -> None:
    output = tmp_path / "run"
    troubles: list[Callable[[subprocess.Popen, Path], None]] = [
        lambda job, log: verify_a_signal_stops_all(job, output, log, after=2),
        lambda job, log: verify_a_lost_rank_ends_all(
            job, output, log, tmp_path, signal.SIGKILL, "sampling", after=5
        ),
        lambda job, log: verify_a_lost_launcher_ends_all(job, output, log, signal.SIGKILL, after=8),
        lambda job, log: verify_a_lost_rank_ends_all(
            job, output, log, tmp_path, signal.SIGSTOP, "step", after=13
        ),
        lambda job, log: verify_no_memory_ends_all(job, output, log, tmp_path, "checkpoint", after=17),
    ]
    for index, trouble in enumerate(troubles[:count]):
        log = tmp_path / f"log{index}"
        # ranks that are killed by their number must be processes of their own
        python, words = (sys.executable, ["--resume"]) if index else (warm, [])
        trouble(launch(output, log, tmp_path, *words, python=python), log)
    verify_resumed(finish, undisturbed(), output, tmp_path)


SHARDINGS = ("ddp", "zero2", "zero3")
PLACES = ("sampling", "step", "checkpoint")


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_killed_or_stopped_rank_ends_all_ranks(
    finish, undisturbed, tmp_path, sharding, number, place
) -> None:
    expected = undisturbed(sharding)
    output, log = tmp_path / "run", tmp_path / "log"
    verify_a_lost_rank_ends_all(
        launch(output, log, tmp_path, sharding=sharding), output, log, tmp_path, number, place
    )
    verify_resumed(finish, expected, output, tmp_path, sharding)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_rank_without_memory_says_so_and_ends_all_ranks(
    finish, undisturbed, tmp_path, sharding, place
) -> None:
    expected = undisturbed(sharding)
    output, log = tmp_path / "run", tmp_path / "log"
    verify_no_memory_ends_all(launch(output, log, tmp_path, sharding=sharding), output, log, tmp_path, place)
    verify_resumed(finish, expected, output, tmp_path, sharding)


@pytest.mark.slow
def test_a_second_start_beside_two_ranks_is_refused_in_one_line(tmp_path) -> None:
    output, log = tmp_path / "run", tmp_path / "log"
    job = launch(output, log, tmp_path)
    make_trouble("sleep", "step", output, tmp_path, job, log)  # it goes on for an hour
    second = launch(output, tmp_path / "second", tmp_path, "--resume")
    assert second.wait(timeout=200) == 73, (tmp_path / "second").read_text()[-3000:]
    refused = lines_of(tmp_path / "second")
    assert len(refused) == 1 and f"in use by pid {ranks_of(output)[0]} on" in refused[0]
    job.send_signal(signal.SIGTERM)
    time.sleep(2)
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=BOUND) == 128 + signal.SIGTERM and not ranks_of(output)
