"""Failures that end a run in one line, each with an exit code of its own.

Exit codes of `vlrl train`: 0 finished, 1 an unexpected error (with its traceback), 2 a mistake in the config
or the command, 65 too many bad rows, 69 another rank is lost, 70 rollouts that could not be scored, 71 out of
memory, 73 the run's folder is locked by another process, 74 a file could not be written, 75 stopped by a
signal after a checkpoint was written (start again with --resume), 76 the engine samples from another
policy, 77 a judge pays wrong answers, 128 + n ended at once by signal n. Those from 64 to 78: sysexits.h.
"""

from __future__ import annotations

import errno
import os
import re
import traceback
from pathlib import Path


class RunFailure(RuntimeError):
    """A failure whose message is the one line that the user needs. `quiet`: another rank prints it."""

    exit_code = 1
    quiet = False


class BadRowsError(RunFailure):
    """More rows than `row_error_limit` allows could not be used."""

    exit_code = 65


class RankLostError(RunFailure):
    """Another rank ended, was killed or stopped answering."""

    exit_code = 69


class OutOfMemoryError(RunFailure):
    """This process or its device has no memory left."""

    exit_code = 71


class LockedError(RunFailure):
    """The run's folder belongs to another process."""

    exit_code = 73


class StorageError(RunFailure):
    """A file of the run could not be written. `passing`: it may be written if it is tried again."""

    exit_code = 74
    passing = False


class EngineMismatchError(RunFailure):
    """The engine does not sample from the policy that is trained."""

    exit_code = 76


class JudgeHackedError(RunFailure):
    """A judge pays answers that are known to be wrong, or its score rises while the answers get no better."""

    exit_code = 77


class StoppedError(RunFailure):
    """A signal asked the run to stop, and its checkpoint is written."""

    exit_code = 75


ADVICE = {  # errno -> (what it is, what to do)
    errno.ENOSPC: ("the disk is full", "free some space, lower watch.keep or raise watch.rollouts_every"),
    errno.EDQUOT: ("the disk quota is used up", "free some space or ask for a larger quota"),
    errno.EFBIG: ("the file-size limit is reached", "raise it (`ulimit -f unlimited`)"),
    errno.EROFS: (
        "the file system is read-only",
        "mount it writable, or copy the run's folder elsewhere and set output= to the copy",
    ),
    errno.EACCES: ("permission was refused", "give this user the right to write there"),
    errno.EPERM: ("permission was refused", "give this user the right to write there"),
    errno.EIO: ("the device reports an input/output error", "check the disk or the mount"),
    errno.ESTALE: ("the network file system lost the file (stale handle)", "mount it again"),
    errno.EMFILE: ("too many files are open", "raise the limit (`ulimit -n 65536`)"),
    errno.ENFILE: ("too many files are open on this machine", "end other processes or raise fs.file-max"),
}


_LASTING = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG,
    errno.ENOTDIR, errno.EISDIR,
)  # fmt: skip


def storage_error(error: BaseException, output: Path, writing: bool = False) -> StorageError | None:
    """The failure that says what is wrong with the storage and what to do; None for an error of another kind.

    A number that `ADVICE` has not is one where the run was `writing`, or where its file is in `output`.
    Libraries that write files outside Python (safetensors, tokenizers, pyarrow) put the number into their
    message: "(os error 28)", "[errno 28]".
    """
    seen: BaseException | None = error
    while seen is not None:
        number = _errno_of(seen)
        place = str(getattr(seen, "filename", None) or output)
        ours = writing or (
            isinstance(seen, OSError) and place != str(output) and place.startswith(str(output))
        )
        if number in ADVICE or (number and ours):
            said = os.strerror(number).lower()
            what, advice = ADVICE.get(number, (said, "check the disk or the mount"))
            failure = StorageError(
                f"cannot write {place!r}: {what}; {advice}, then go on with --resume (checkpoints "
                "already written are intact)"
            )
            failure.passing = number not in _LASTING
            return failure
        seen = seen.__cause__ or seen.__context__
    return None


def _errno_of(error: BaseException) -> int:
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = re.search(
        r"\(os error (\d+)\)$|\[errno (\d+)\]", str(error).strip(), re.IGNORECASE
    )  # of Rust's libraries, of pyarrow
    return int(found[1] or found[2]) if found else 0


_EXHAUSTED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)
_NO_MEMORY = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|CUDA error: out of memory"
)  # no words that a text may hold


def out_of_memory(error: BaseException, where: str) -> OutOfMemoryError | None:
    """The failure for memory that could not be allocated, on the device or the host; None for an error of
    another kind."""
    text = str(error)
    on_device = type(error).__name__ == "OutOfMemoryError" and not isinstance(error, RunFailure)
    on_host = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    if not on_device and not on_host and not (isinstance(error, RuntimeError) and _NO_MEMORY.search(text)):
        return None
    said = " ".join(text.split())[:200] or "MemoryError"
    return OutOfMemoryError(
        f"{where}: out of memory ({said}); lower micro_batch_tokens, the engine's share of memory, "
        "group_size or max_tokens, then go on with --resume"
    )


def of_the_machine(error: BaseException) -> bool:
    """Whether memory, disk or file handles are used up: the fault of no row, no answer and no plug-in."""
    return out_of_memory(error, "") is not None or (isinstance(error, OSError) and error.errno in _EXHAUSTED)


def exited(error: SystemExit, where: str) -> RunFailure:
    """The failure for code in a run that calls exit(): it would end the run without a word, and with exit
    code 0 as a finished one."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "code in the run"
    return RunFailure(
        f"{where}: {place} called exit({error.code!r}), which would end the run unseen; raise an error "
        "there instead"
    )


def place_of(error: BaseException) -> str:
    """file:line of the innermost frame inside this package, or ""."""
    found, frame = "", error.__traceback__
    while frame is not None:
        path = frame.tb_frame.f_code.co_filename
        if f"{os.sep}vlrl{os.sep}" in path:
            found = f"vlrl/{path.rpartition(f'{os.sep}vlrl{os.sep}')[2]}:{frame.tb_lineno}"
        frame = frame.tb_next
    return found


_FOREIGN = (f"{os.sep}site-packages{os.sep}", str(Path(os.__file__).parent), "<frozen ")


def user_place(error: BaseException) -> str:
    """file:line of the innermost frame in a file of the user's: of no package, nor of Python; or ""."""
    places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    return next((place for place in reversed(places) if is_users(place)), "")


def is_users(file: str) -> bool:
    """Whether a file is neither of this project's packages, nor of Python, nor of an installed package."""
    ours = (f"{os.sep}vlrl{os.sep}", f"{os.sep}vlrl_rewards{os.sep}", f"{os.sep}vlrl_data{os.sep}")
    return not any(part in file for part in (*_FOREIGN, *ours))
