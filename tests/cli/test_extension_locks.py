"""Locks of torch's extension cache: a stale one is removed and named, one that is held is not."""

import logging
import os
import subprocess
import sys
import threading
import time

import pytest
from torch.utils.file_baton import FileBaton

from vlrl.trainer.ranks import extension_locks, launch

OLD = 3600


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    return tmp_path


def lock_of(cache, extension, age):
    folder = cache / extension
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    for path in (folder / "lock", folder):
        os.utime(path, (time.time() - age, time.time() - age))
    return folder / "lock"


def test_the_lock_of_a_killed_build_is_removed_and_named(cache, caplog):
    lock, deeper = lock_of(cache, "cpu_adam", OLD), lock_of(cache, "py311_cpu/fused_adam", OLD)
    assert extension_locks.remove_stale() == []
    assert not lock.exists() and not deeper.exists()
    assert "cpu_adam" in caplog.text and "fused_adam" in caplog.text and str(lock) in caplog.text


def test_a_lock_that_a_process_holds_is_kept_however_old(cache):
    folder = cache / "cpu_adam"
    folder.mkdir()
    code = (
        "import os, sys, time; os.open(sys.argv[1], os.O_CREAT | os.O_EXCL); print('held', flush=True); "
        "time.sleep(60)"
    )
    builder = subprocess.Popen(
        [sys.executable, "-c", code, str(folder / "lock")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert builder.stdout.readline() == "held\n"
        os.utime(folder, (1, 1)), os.utime(folder / "lock", (1, 1))
        (left,) = extension_locks.remove_stale()
        assert (
            left.holders == (builder.pid,)
            and not left.is_stale
            and left.idle > OLD
            and (folder / "lock").exists()
        )
    finally:
        builder.kill()
        builder.wait()
    assert extension_locks.remove_stale() == []  # killed: nobody holds it any more


def test_a_builder_that_opens_and_closes_other_files_holds_its_lock(cache, monkeypatch):
    lock = lock_of(cache, "cpu_adam", OLD)
    read = os.readlink

    def busy(path):
        target = read(path)
        if target == os.devnull:
            raise FileNotFoundError(path)  # as if it had been closed since the folder was listed
        return target

    with lock.open() as held, open(os.devnull) as first, open(os.devnull) as last:
        assert held and first and last
        os.utime(lock, (1, 1)), os.utime(lock.parent, (1, 1))
        monkeypatch.setattr(extension_locks.os, "readlink", busy)
        (left,) = extension_locks.remove_stale()
    assert left.holders == (os.getpid(),) and lock.exists()


def test_a_young_lock_of_nobody_may_be_another_machines(cache):
    lock = lock_of(cache, "cpu_adam", 1)
    (left,) = extension_locks.remove_stale()
    assert left.extension == "cpu_adam" and not left.is_stale and lock.exists()


def test_a_process_that_waits_goes_on_when_the_lock_becomes_stale(cache, monkeypatch):
    """torch's own wait, which has no limit, ends."""
    lock = lock_of(cache, "cpu_adam", 0)
    monkeypatch.setattr(extension_locks, "QUIET_SECONDS", 0.5)
    waiter = threading.Thread(target=FileBaton(str(lock)).wait, daemon=True)
    waiter.start()
    extension_locks.watch(seconds=5, look_every=0.1)
    waiter.join(4)
    assert not waiter.is_alive() and not lock.exists()


@pytest.mark.parametrize(("uses", "removed"), [("true", True), ("false", False)])
def test_a_run_with_deepspeed_looks_at_its_start(cache, monkeypatch, uses, removed):
    lock = lock_of(cache, "cpu_adam", OLD)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", uses)
    monkeypatch.delenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", raising=False)
    launch.find_deepspeed_config()
    assert lock.exists() is not removed


def test_what_waits_is_named_once(cache, caplog):
    lock_of(cache, "cpu_adam", 1)
    with caplog.at_level(logging.WARNING):
        extension_locks.watch(seconds=0.3, look_every=0.05).join(3)
    assert caplog.text.count("is being compiled") == 1


def test_tests_use_a_cache_of_their_own():
    assert "vlrl-test" in str(extension_locks.cache_folder())
