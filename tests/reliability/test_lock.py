"""One process per output folder: a second start refuses in one line, and the lock of a dead or silent process
is taken over."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from vlrl.services.failures import LockedError
from vlrl.trainer.ranks.lock import NAME, RunLock, birth, identity, owner


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def leave(folder, silent=0.0, **changes):
    """A lock as another process would have left it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text(json.dumps(identity() | {"token": "other"} | changes))
    then = time.time() - silent
    os.utime(folder / NAME, (then, then))


def test_the_second_start_names_the_first(tmp_path):
    first = RunLock(tmp_path / "run")
    first.acquire()
    with pytest.raises(LockedError) as caught:
        RunLock(tmp_path / "run").acquire()
    said = str(caught.value)
    assert (
        "\n" not in said
        and f"pid {os.getpid()}" in said
        and identity()["host"] in said
        and owner(first.path)["started"] in said
    )
    first.release()
    assert not list((tmp_path / "run").iterdir())
    again = RunLock(tmp_path / "run")
    again.acquire()
    again.release()


def test_one_of_many_threads_and_processes_wins(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from vlrl.trainer.ranks.lock import RunLock; from "
        "vlrl.services.failures import LockedError\n"
        "lock = RunLock(Path(sys.argv[1]))\n"
        "try:\n    lock.acquire(); print('won'); sys.stdout.flush(); sys.stdin.read()\nexcept LockedError: "
        "print('refused')"
    )
    leave(tmp_path, pid=dead_pid())  # a stale lock, so that all of them try to take over
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdin=-1, stdout=-1, stderr=-1, text=True
        )
        for _ in range(6)
    ]
    said = [process.stdout.readline().strip() for process in started]
    for process in started:
        process.communicate()
    assert sorted(said) == ["refused"] * 5 + ["won"]


def test_the_lock_of_a_dead_process_is_taken_over_at_once(tmp_path, caplog):
    pid = dead_pid()
    leave(tmp_path, pid=pid, birth="12345")
    lock = RunLock(tmp_path)
    lock.acquire()
    assert (
        owner(lock.path)["pid"] == os.getpid()
        and f"took over '{tmp_path}' from pid {pid}" in caplog.text
        and "is dead" in caplog.text
    )
    lock.release()


def test_a_pid_that_is_another_process_now_is_dead(tmp_path):
    leave(tmp_path, pid=os.getpid(), birth="1")
    lock = RunLock(tmp_path)
    lock.acquire()
    lock.release()
    assert birth(os.getpid()) not in (None, "", "1")


def test_a_living_process_on_this_machine_keeps_its_lock_however_silent(tmp_path):
    leave(tmp_path, silent=10_000)
    with pytest.raises(LockedError):
        RunLock(tmp_path, stale_after=5).acquire()


@pytest.mark.parametrize("changes", [{"host": "other"}, {"boot": "another boot"}, {"namespace": "pid:[1]"}])
def test_elsewhere_the_time_since_the_last_touch_decides(tmp_path, caplog, changes):
    leave(tmp_path, silent=20, **changes)
    with pytest.raises(LockedError):
        RunLock(tmp_path, stale_after=60).acquire()
    lock = RunLock(tmp_path, stale_after=10)
    lock.acquire()
    assert "it has been silent for 20 s (watch.lock_stale is 10)" in caplog.text
    lock.release()


@pytest.mark.parametrize("content", ["", '{"host": "x', "[1]", "\0\0\0"])
def test_a_torn_lock_is_taken_over_when_it_is_old_and_respected_while_it_is_written(tmp_path, content):
    (tmp_path / NAME).write_text(content)
    lock = RunLock(tmp_path, stale_after=60)
    thread = threading.Thread(target=lambda: (time.sleep(0.5), leave(tmp_path)))  # its owner finishes writing
    thread.start()
    with pytest.raises(LockedError, match=f"pid {os.getpid()}"):
        lock.acquire()
    thread.join()
    (tmp_path / NAME).write_text(content)
    os.utime(tmp_path / NAME, (1, 1))
    lock.acquire()
    lock.release()


def test_the_lock_is_touched_and_an_owner_that_lost_it_stops(tmp_path):
    lock = RunLock(tmp_path, stale_after=2.0)
    lock.acquire()
    os.utime(lock.path, (1, 1))
    time.sleep(0.6)
    assert time.time() - lock.path.stat().st_mtime < 5
    lock.check()
    leave(tmp_path, pid=4242, host="elsewhere")
    deadline = time.time() + 5
    while not lock.taken_by and time.time() < deadline:
        time.sleep(0.05)
    with pytest.raises(LockedError, match="pid 4242 on elsewhere"):
        lock.check()
    lock.release()
    assert owner(tmp_path / NAME)["pid"] == 4242  # the other's lock stays
