"""Every file operation of a checkpoint fails once with each of ten errors: it is tried again, or ends in one
line; no partial folder stays and the checkpoint that follows is whole."""

import builtins
import errno
import io
import os

import pytest
from kit import open_run

from vlrl.services.failures import StorageError, storage_error
from vlrl.trainer.checkpoints import checkpoint

ERRORS = (
    errno.EIO, errno.ENOSPC, errno.EACCES, errno.EBUSY, errno.ETIMEDOUT, errno.ENOTCONN, errno.EXDEV,
    errno.ENOENT, errno.ESTALE, errno.EMFILE,
)  # fmt: skip
HOOKED = (
    (builtins, "open"),
    (io, "open"),
    (os, "mkdir"),
    (os, "replace"),
    (os, "fsync"),
    (os, "open"),
)
LASTING = (errno.ENOSPC, errno.EACCES)


class Faults:
    """Counts the operations on files under a folder, and lets one of them fail once."""

    def __init__(self, monkeypatch, folder):
        self.folder, self.count, self.at, self.number = str(folder), 0, 0, 0
        for module, name in HOOKED:
            monkeypatch.setattr(module, name, self.hooked(getattr(module, name), name))

    def hooked(self, function, name):
        def call(first, *rest, **more):
            if name == "fsync" or str(first).startswith(self.folder):
                self.count += 1
                if self.count == self.at:
                    raise OSError(self.number, os.strerror(self.number), None if name == "fsync" else first)
            return function(first, *rest, **more)

        return call

    def fail(self, at, number):
        self.count, self.at, self.number = 0, at, number


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_operation_failing_once_with_every_error(tmp_path, monkeypatch, every):
    run = open_run(tmp_path)
    whole = checkpoint.save(run)
    names = sorted(path.relative_to(whole).as_posix() for path in whole.rglob("*"))
    monkeypatch.setattr(checkpoint, "PAUSES", (0.0, 0.0))
    faults = Faults(monkeypatch, tmp_path)
    faults.fail(0, 0)
    run.step += 1
    checkpoint.save(run)
    operations = faults.count
    assert operations >= 20
    said, kept = set(), 0
    for at in range(1, operations + 1):
        for error in ERRORS if every else (ERRORS[at % len(ERRORS)],):
            run.step += 1
            faults.fail(at, error)
            try:
                folder = checkpoint.save(run)
            except StorageError as failure:
                line = str(failure)
                assert error in LASTING and "\n" not in line and "go on with --resume" in line
                said.add(line.partition(": ")[2])
                faults.fail(0, 0)
                folder = checkpoint.save(run)
            else:
                kept += 1
            assert not list(folder.parent.glob(".step-*")), (at, errno.errorcode[error])
            assert checkpoint.faults(folder) == []
            assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")) == names
    assert kept > 10 and len(said) == 2


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_every_errno_of_a_write_is_one_line(number, tmp_path):
    error = OSError(number, os.strerror(number), str(tmp_path / "metrics.jsonl"))
    failure = storage_error(error, tmp_path)
    assert failure is not None and "metrics.jsonl" in str(failure) and "\n" not in str(failure)
    assert storage_error(OSError(number, "x"), tmp_path, writing=True) is not None
    elsewhere = storage_error(OSError(errno.ENOENT, "x", "/elsewhere/a"), tmp_path)
    assert elsewhere is None, "an error of another file is no fault of the run's storage"
