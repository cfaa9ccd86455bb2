"""Rank 0 that is stopped, and a launcher that is killed or hung up: every process ends in a bounded time, and
the run goes on."""

import os
import signal
import time
from pathlib import Path

import pytest
from reliability_kit import steps_of
from test_lost_ranks import BOUND, finish, launch, lines_of, ranks_of, wait_for  # noqa: F401 (a fixture)

from vlrl.trainer.checkpoints import checkpoint

pytestmark = pytest.mark.timeout(900)


def alive(pids):
    """Processes that are there and no zombies."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        found += [pid] if state not in "ZX" else []
    return found


def wait_until_gone(pids, seconds=BOUND):
    until = time.time() + seconds
    while alive(pids):
        assert time.time() < until, alive(pids)
        time.sleep(0.1)


@pytest.mark.slow
def test_a_stopped_rank_0_ends_all_ranks(tmp_path):
    output, log = tmp_path / "run", tmp_path / "log"
    job = launch(output, log, tmp_path)
    wait_for(lambda: steps_of(output) >= 3, job, log)
    ranks = ranks_of(output)
    begun = time.time()
    os.kill(ranks[0], signal.SIGSTOP)
    assert job.wait(timeout=BOUND + 30) != 0
    assert time.time() - begun < BOUND
    wait_until_gone(ranks.values(), 5)
    said = [line for line in lines_of(log) if "rank 0 (pid" in line]
    assert len(said) == 1 and "does not answer" in said[0] and "--resume" in said[0], log.read_text()[-3000:]


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_launcher_that_is_gone_leaves_a_checkpoint_and_no_process(finish, tmp_path, number):  # noqa: F811
    output, log = tmp_path / "run", tmp_path / "log"
    job = launch(output, log, tmp_path)
    wait_for(lambda: steps_of(output) >= 3, job, log)
    ranks = ranks_of(output)
    job.send_signal(number)
    job.wait(timeout=BOUND)
    wait_until_gone(ranks.values())
    step = steps_of(output)
    assert step < 24, "it ran on to its end"
    newest, notes = checkpoint.newest_intact(output)
    assert newest is not None and newest.name == f"step-{step:06d}" and not notes, log.read_text()[-3000:]
    finish(output, tmp_path / "resumed", tmp_path, "--resume")
    assert steps_of(output) == 24
