"""Rank 0 that is stopped, and a launcher that is hung up, or killed in the first steps (later:
test_lost_ranks.py): every process ends in a bounded time, and the run goes on."""

import os
import signal
import time

import pytest
from reliability_kit import steps_of
from test_lost_ranks import (  # noqa: F401 (a fixture)
    BOUND,
    finish,
    launch,
    lines_of,
    ranks_of,
    verify_a_lost_launcher_ends_all,
    wait_for,
    wait_until_gone,
)

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]


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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_launcher_that_is_gone_leaves_a_checkpoint_and_no_process(finish, tmp_path, number):  # noqa: F811
    output, log = tmp_path / "run", tmp_path / "log"
    verify_a_lost_launcher_ends_all(launch(output, log, tmp_path), output, log, number, after=3)
    finish(output, tmp_path / "resumed", tmp_path, "--resume")
    assert steps_of(output) == 24
