"""Runs untrusted programs in separate processes: no network, no file outside their folder, limits on CPU,
memory, processes, disk and output.

Isolation uses namespaces (bubblewrap; where it is missing, Landlock), a seccomp filter and control groups
(`isolation`). A machine with neither is refused, unless the caller passes `sandbox="unsafe"` (limits only).
What else a machine lacks is logged once, by `announce`.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

from vlrl_rewards.code import isolation

MODES = ("bubblewrap", "unsafe")
_START = 60.0  # seconds until a runner is ready, on a busy machine
_FIRST_USER, _USERS = (
    1 << 30,
    1 << 29,
)  # user ids that no account has; every process of a solution or a check has one of its own


class SandboxError(RuntimeError):
    """This machine has no sandbox, or the sandbox failed."""


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of a run. seconds: wall clock per test; total_seconds: all tests; memory, output, disk: bytes;
    processes: at the same time.

    `packages`: third-party packages can be read, in the folder `isolation.packages_inside`.
    `memory` and `processes` hold for all processes of a program together where control groups can be written,
    else `memory` holds for each of at most `isolation.FEW_PROCESSES` processes.
    """

    seconds: float = 4.0
    total_seconds: float = 60.0
    memory: int = 1 << 30
    output: int = 1 << 20
    processes: int = 64
    disk: int = 64 << 20
    packages: bool = False


class Ran(NamedTuple):
    """The result of one test: "ok" or an error, and the output (or the result as JSON)."""

    status: str
    out: str


def available() -> str:
    """The reason why programs cannot be isolated on this machine; "" if they can."""
    return isolation.unavailable()


def require(sandbox: str) -> None:
    """Raises SandboxError where programs cannot be isolated, ValueError on an unknown mode. Logs once what
    this machine lacks."""
    if sandbox not in MODES:
        raise ValueError(f"sandbox: {sandbox!r} is none of {', '.join(MODES)}")
    if sandbox == "unsafe":
        return
    if why := available():
        raise SandboxError(
            f"code cannot be run safely on this machine: {why}. Install bubblewrap and allow user "
            "namespaces, "
            "or pass sandbox='unsafe' to run it with limits only (it can then read and write all files "
            "that you can)"
        )
    announce()


@lru_cache(maxsize=1)
def announce() -> None:
    """Log what isolation this machine lacks, once."""
    for sentence in isolation.missing():
        logging.getLogger(__name__).warning("sandbox: %s", sentence)


def run(
    code: str,
    tests: Sequence[Any],
    fn: str | None = None,
    limits: SandboxLimits | None = None,
    sandbox: str = "bubblewrap",
    stop: bool = True,
) -> list[Ran]:
    """Run `code` on every test: text for standard input, or a list of arguments for the function `fn` (of
    class Solution if there is one).

    `stop`: end at the first test that fails by an error or by time. The result has no entry for the tests
    after it. Raises SandboxError.
    """
    limits = limits or SandboxLimits()
    total = min(limits.total_seconds, limits.seconds * len(tests) + 5.0)
    job = {"mode": "tests", "code": code, "fn": fn, "tests": list(tests), "stop": stop}
    with _process(job, limits, sandbox) as process:
        return _results(_collect(process, total, (limits.output + 1000) * (len(tests) + 1)))


def run_check(
    code: str,
    check: str,
    names: Sequence[str],
    setup: str = "",
    limits: SandboxLimits | None = None,
    sandbox: str = "bubblewrap",
) -> Ran:
    """Run a check that is a program (`check(candidate)`, or asserts) against a solution that it cannot be
    tampered by: status "ok" if it passes.

    The solution `code` and the check run in two sandboxes, as two users (where this process is root) and
    without a process, a frame, a file or a descriptor in common; arguments and results cross two pipes as
    plain data. In the check, `names` are the solution's functions and `setup` is the check's own code before
    them. An answer of another type than plain data equals nothing. Raises SandboxError.
    """
    limits = limits or SandboxLimits()
    calls, answers = os.pipe(), os.pipe()
    ours = {
        "mode": "check",
        "code": check,
        "setup": setup,
        "names": list(names),
        "read": answers[0],
        "write": calls[1],
    }
    theirs = {"mode": "serve", "code": code, "read": calls[0], "write": answers[1]}
    with ExitStack() as stack:
        try:
            stack.enter_context(_process(theirs, limits, sandbox))
            checker = stack.enter_context(_process(ours, limits, sandbox))
        finally:
            for fd in (*calls, *answers):
                os.close(fd)
        results = _results(_collect(checker, limits.seconds + 10.0, 10_000))
    return results[0] if results else Ran("timeout", "")


@contextmanager
def _process(job: dict[str, Any], limits: SandboxLimits, sandbox: str) -> Iterator[subprocess.Popen[bytes]]:
    """The runner with its job, isolated; its output is a pipe. It is killed at the end, with all its
    processes."""
    require(sandbox)
    isolated = sandbox != "unsafe"
    job = {
        **job, **asdict(limits), "isolated": isolated,
        "uid": _FIRST_USER + secrets.randbelow(_USERS) if isolated and os.geteuid() == 0 else None,
        "processes": isolation.processes_of_program(limits.processes) if isolated else limits.processes,
    }  # fmt: skip
    runner = resources.files("vlrl_rewards.code").joinpath("runner.py").read_text()
    with ExitStack() as stack:
        stdin = stack.enter_context(tempfile.TemporaryFile())
        stdin.write(json.dumps(job).encode())
        stdin.seek(0)
        interpreter = isolation.python(isolated)
        prefix, passed = [], [job[name] for name in ("read", "write") if name in job]
        if isolated:
            bare = isolation.backend() == "landlock"
            shown = [isolation.packages()] if limits.packages else []
            prefix = [*stack.enter_context(isolation.bounded(limits.memory, limits.disk, limits.processes))]
            program = stack.enter_context(tempfile.TemporaryFile())
            program.write(isolation.syscall_filter(bare=bare))
            program.seek(0)
            if bare:
                interpreter = isolation.interpreter_of_landlock()
                prefix += isolation.landlock(program.fileno(), interpreter, *shown)
            else:
                prefix += isolation.bubblewrap(limits.disk, limits.packages)
            if isolation.filtered():
                prefix += [] if bare else ["--seccomp", str(program.fileno())]
                passed.append(program.fileno())
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        process = subprocess.Popen(
            [*prefix, interpreter, "-I", "-S", "-c", runner], stdin=stdin,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd=folder, env={"PATH": "/usr/bin:/bin"}, pass_fds=passed,
        )  # fmt: skip
        stack.callback(_kill, process, isolated and isolation.backend() == "landlock")
        yield process


def _collect(process: subprocess.Popen[bytes], seconds: float, most: int) -> bytes:
    assert process.stdout is not None
    fd, out, deadline, started = process.stdout.fileno(), bytearray(), time.monotonic() + _START, False
    while len(out) < most:
        ready = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]
        chunk = os.read(fd, 1 << 16) if ready else b""
        if not chunk:
            break
        out += chunk
        if not started and b"\n" in out:  # the runner is ready: the time of the tests begins
            deadline, started = time.monotonic() + seconds, True
    return bytes(out)


def _kill(process: subprocess.Popen[bytes], supervised: bool) -> None:
    """Kill a runner with all its processes; `supervised`: its parent does it, and is asked to first."""
    if supervised:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _results(out: bytes) -> list[Ran]:
    if not out.startswith(b'{"ready": true}\n'):
        raise SandboxError(
            f"the sandbox did not start (its output: {out[:200]!r}); this is no verdict on the program"
        )
    found: list[Ran] = []
    for line in out.split(b"\n")[1:]:
        try:
            row = json.loads(line)
            if row["i"] != len(found):
                break
            found.append(Ran(str(row["status"]), str(row["out"])))
        except (ValueError, TypeError, KeyError, RecursionError):
            break
    return found
