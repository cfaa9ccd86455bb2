"""Signals stop a run with a checkpoint, in a bounded time; the run that goes on ends as one that was not
stopped."""

import signal
import sys
import time

import pytest
from reliability_kit import ENVIRONMENT, ROOT, config, start, steps_of, verify_equal

from vlrl.services.files import read_jsonl
from vlrl.trainer.checkpoints import checkpoint
from vlrl.trainer.ranks.lock import NAME
from vlrl.trainer.ranks.stopping import STOP_FILE, StopRequest
from vlrl.training import train

COUNT = 120
STEPS = f"steps={COUNT}"
TROUBLE = [
    f"plugins=[{ROOT / 'tests' / 'reliability' / 'trouble.py'}]",
    "rewards.any={name: troubled}",
    STEPS,
]
SEEN = "watch.checkpoint_every=1000"  # no checkpoint but that of the signal


def wait_for(condition, process, seconds=400):
    deadline = time.time() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.time() < deadline, "it never happened"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    train(config(folder, STEPS, SEEN), live=False)
    return folder


@pytest.mark.parametrize(
    "how",  # SIGTERM: tests/reliability/test_lost_ranks.py
    [
        signal.SIGINT,
        STOP_FILE,
        *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGUSR1)),
    ],
)
def test_a_stopped_run_writes_a_checkpoint_and_goes_on_to_the_same_end(undisturbed, warm, tmp_path, how):
    run = tmp_path / "run"
    # one of them ends as a user's process does: threads are joined, the interpreter is finalised
    process = start(run, STEPS, SEEN, python=sys.executable if how == signal.SIGINT else warm)
    wait_for(lambda: steps_of(run) >= 3, process)
    process.send_signal(how) if how != STOP_FILE else (run / STOP_FILE).write_text("")
    _, said = process.communicate(timeout=200)
    assert process.returncode == 75, said
    last = [line for line in said.splitlines() if line.startswith("vlrl: ")][-1]
    step = steps_of(run)
    assert (
        f"after step {step}; its checkpoint is" in last
        and "go on with --resume" in last
        and str(getattr(how, "name", how)) in last
    )
    assert "Traceback" not in said and not (run / NAME).exists()
    assert [path.name for path in checkpoint.saved(run)] == [f"step-{step:06d}"] and checkpoint.faults(
        checkpoint.saved(run)[0]
    ) == []
    assert 3 <= step < COUNT
    train(config(run, STEPS, SEEN), resume=True, live=False)
    verify_equal(undisturbed, run)
    assert not (run / STOP_FILE).exists()
    assert [row["name"] for row in read_jsonl(run / "events.jsonl") if row["kind"] == "heldout"] == [
        "start",
        "final",
    ]


@pytest.mark.parametrize("second", [signal.SIGTERM, pytest.param(None, marks=pytest.mark.slow)])
def test_a_step_that_hangs_is_ended_by_a_second_signal_or_by_the_time(warm, tmp_path, second):
    run, folder = tmp_path / "run", tmp_path / "trouble"
    folder.mkdir()
    seconds = 60 if second else 3
    process = start(
        run, *TROUBLE, f"watch.stop_seconds={seconds}", env={**ENVIRONMENT, "TROUBLE": str(folder)}
    )
    wait_for(lambda: steps_of(run) >= 3, process)
    (folder / "sleep-reward").write_text("")
    wait_for((folder / "sleep-reward.seen").exists, process)
    if second:
        env = {**ENVIRONMENT, "TROUBLE": str(tmp_path)}
        other = start(
            run, *TROUBLE, words=["--resume"], python=warm, env=env
        )  # a second start beside the first
        _, refused = other.communicate(timeout=400)
        assert (
            other.returncode == 73
            and f"in use by pid {process.pid}" in refused
            and "Traceback" not in refused
        )
    begun = time.time()
    process.send_signal(signal.SIGTERM)
    if second:
        time.sleep(1.5)
        assert process.poll() is None  # the first one waits for the step
        process.send_signal(second)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 128 + signal.SIGTERM and time.time() - begun < seconds + 40
    why = (
        "SIGTERM arrived again"
        if second
        else "the step and its checkpoint took longer than watch.stop_seconds (3 s)"
    )
    assert said.rstrip().splitlines()[-1] == (
        f"vlrl: {why}: the run ends without a checkpoint of this step; go on with --resume from the last one"
    )
    assert not (run / NAME).exists()
    assert checkpoint.newest_intact(run)[0] == checkpoint.folders(run)[-1]


def test_signals_are_what_they_were_after_the_run_and_twins_count_once(tmp_path, capsys):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    with StopRequest(tmp_path, 60) as request:
        assert request.asked() == ""
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)  # from a terminal and from the launcher
        deadline = time.time() + 60
        while not request.asked() and time.time() < deadline:
            time.sleep(0.01)
        assert request.asked() == "SIGUSR1"
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)] == before
    assert capsys.readouterr().err.count("SIGUSR1") == 1
