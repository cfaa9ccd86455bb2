"""One process per output folder: a second start refuses in one line, and a killed process leaves no lock."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import filelock
import pytest

from vlrl.services.failures import LockedError
from vlrl.trainer.ranks import lock as locks
from vlrl.trainer.ranks.lock import NAME, RunLock, owner

HOLDER = (
    "import sys; from pathlib import Path; from vlrl.trainer.ranks.lock import RunLock\n"
    "from vlrl.services.failures import LockedError\n"
    "lock = RunLock(Path(sys.argv[1]))\n"
    "try:\n    lock.acquire(); print('won', flush=True); sys.stdin.read()\n"
    "except LockedError: print('refused')"
)


def holder(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdin=-1, stdout=-1, text=True)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.1)


def test_the_second_start_names_the_first(tmp_path: Path) -> None:
    first = RunLock(tmp_path / "run")
    first.acquire()
    with pytest.raises(LockedError) as caught:
        RunLock(tmp_path / "run").acquire()
    said = str(caught.value)
    assert "\n" not in said and f"in use by pid {os.getpid()} on {socket.gethostname()} (started 2" in said
    first.release()
    first.release()
    assert not list((tmp_path / "run").iterdir())
    again = RunLock(tmp_path / "run")
    again.acquire()
    again.release()


def test_one_of_many_processes_wins(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("pid 1 on elsewhere (started 2020-01-01)")  # of a killed run
    started = [holder(tmp_path) for _ in range(6)]
    said = [process.stdout.readline().strip() for process in started if process.stdout]
    for process in started:
        process.communicate()
    assert sorted(said) == ["refused"] * 5 + ["won"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_leaves_no_lock_and_a_stopped_one_keeps_it(tmp_path: Path, number: int) -> None:
    process = holder(tmp_path)
    assert process.stdout and process.stdout.readline() == "won\n"
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(LockedError, match=f"in use by pid {process.pid} on"):
        RunLock(tmp_path).acquire()
    process.send_signal(signal.SIGCONT)
    process.send_signal(number)
    process.communicate()
    lock = RunLock(tmp_path)
    lock.acquire()
    assert owner(lock.path).startswith(f"pid {os.getpid()} on ")
    lock.release()


FORKING = HOLDER.replace("print('won', flush=True)", "print(os.fork() or time.sleep(60), flush=True)")


def test_a_forked_child_that_outlives_its_parent_holds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os, time; " + FORKING, str(tmp_path)]
    process = subprocess.Popen(command, stdin=-1, stdout=-1, text=True)
    assert process.stdout
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    lock = RunLock(tmp_path)
    lock.acquire()
    os.kill(child, signal.SIGKILL)  # it was alive
    lock.release()


def test_another_thread_may_release(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.acquire()
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    assert not list(tmp_path.iterdir())
    RunLock(tmp_path).acquire()


def test_without_flock_a_file_with_the_pid_is_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(fd: int) -> bool:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(filelock._unix, "lock_fd_nonblocking", missing)
    lock = RunLock(tmp_path)
    with pytest.warns(UserWarning, match="flock not supported"):
        lock.acquire()
    with pytest.raises(LockedError, match=f"in use by {os.getpid()} "), pytest.warns(UserWarning):
        RunLock(tmp_path).acquire()
    lock.release()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_locked_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(fd: int) -> bool:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(filelock._unix, "lock_fd_nonblocking", no_locks)
    with pytest.raises(LockedError, match=r"run.lock' cannot be locked \(\[Errno 37\] No locks available\)"):
        RunLock(tmp_path).acquire()
