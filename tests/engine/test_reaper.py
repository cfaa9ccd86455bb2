"""The reaper: processes and folders of this process are gone when it is, however it ended."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from vlrl.services.reaper import REAPER, Reaper, end_group, start_time

SCRIPT = textwrap.dedent(
    """
    import os, signal, sys, time
    from vlrl.services.reaper import REAPER
    folder = REAPER.folder()
    (folder / "file").write_text("x")
    sleep = "import time; time.sleep(60)"
    family = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-S', '-c', '{sleep}']); "
        "print(p.pid, flush=True); p.wait()"
    )
    child = REAPER.spawn([sys.executable, "-S", "-c", family], stdout=-1)
    print(child.pid, int(child.stdout.readline()), folder, flush=True)
    end = sys.argv[1]
    if end == "wait":
        time.sleep(60)
    elif end == "raise":
        raise SystemExit(3)
    elif end == "hard":
        os._exit(4)
    """  # noqa: E501
)


def gone(pid):
    """Whether a process is gone, or a zombie that nobody waits for."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


@pytest.mark.parametrize("end", ["normal", "raise", "hard", signal.SIGTERM, signal.SIGKILL], ids=str)
def test_nothing_is_left(end):
    word = end if isinstance(end, str) else "wait"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, word], stdout=subprocess.PIPE, text=True)
    child, grandchild, folder = process.stdout.readline().split()
    if not isinstance(end, str):
        assert not gone(child) and not gone(grandchild) and Path(folder).is_dir()
        process.send_signal(end)
    process.wait(10)
    process.stdout.close()
    limit = time.monotonic() + 5
    while time.monotonic() < limit and not (gone(child) and gone(grandchild) and not Path(folder).exists()):
        time.sleep(0.02)
    assert gone(child) and gone(grandchild) and not Path(folder).exists()


def test_ending_twice_and_a_number_that_is_used_again():
    reaper = Reaper()
    process = reaper.spawn(
        [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert start_time(process.pid)
    end_group(process.pid, born="1")
    assert process.poll() is None, "another process has the number"
    reaper.end(process)
    reaper.end(process)
    assert process.returncode == -signal.SIGKILL and process.stdin.closed and process.stdout.closed
    folder = reaper.folder()
    reaper.remove(folder)
    reaper.remove(folder)
    assert not folder.exists() and not reaper.processes and not reaper.folders
    reaper.end_all()
    assert REAPER is not reaper and start_time(os.getpid()) and start_time(2**22 + 1) == ""


def test_a_folder_is_registered_before_it_is_there(monkeypatch, tmp_path):
    """A run that is killed while many threads make folders leaves none of them."""
    from vlrl.services import reaper

    one, told, made = reaper.Reaper(), [], []
    monkeypatch.setattr(one, "_tell", told.append)
    monkeypatch.setattr(reaper.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(reaper.os, "mkdir", lambda path, mode: made.append((path, list(told))))
    folder = one.folder()
    assert (
        made == [(str(folder), [f"+f {folder}"])]
        and folder.parent == tmp_path
        and folder.name.startswith(reaper.PREFIX)
    )
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setattr(one, "_tell", told.append)
        patch.setattr(reaper.tempfile, "gettempdir", lambda: str(tmp_path))
        real = one.folder()
    (real / "file").write_text("x")
    reaper.reap([f"+f {real}".encode(), f"+f {tmp_path}/{reaper.PREFIX}never-made".encode()])
    assert not real.exists()
