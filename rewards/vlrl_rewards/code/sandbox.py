"""Runs untrusted programs in a separate process: no network, no file outside their folder, limits on CPU, memory, processes and output.

Isolation uses namespaces (bubblewrap). A machine without them is refused, unless the caller passes `sandbox="unsafe"` (limits only).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

INSIDE = "/opt/python"
MODES = ("bubblewrap", "unsafe")


class SandboxError(RuntimeError):
    """This machine has no sandbox, or the sandbox failed."""


@dataclass(frozen=True)
class Limits:
    """Limits of a run. seconds: wall clock per test; total_seconds: all tests; memory, output: bytes; processes: at the same time."""

    seconds: float = 4.0
    total_seconds: float = 60.0
    memory: int = 1 << 30
    output: int = 1 << 20
    processes: int = 64


class Ran(NamedTuple):
    """The result of one test: "ok" or an error, and the output (or the result as JSON)."""

    status: str
    out: str


def _python(isolated: bool = False) -> str:
    """The path of the interpreter behind the link of a virtual environment; `isolated`: its path inside, under INSIDE unless it is in /usr."""
    real, prefix = os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)
    return INSIDE + real.removeprefix(prefix) if isolated and not prefix.startswith("/usr") else real


def _bubblewrap() -> list[str]:
    found = shutil.which("bwrap")
    if found is None:
        return []
    mounts = [part for path in ("/usr", "/lib", "/lib64", "/bin") if os.path.exists(path) for part in ("--ro-bind", path, path)]
    if _python(isolated=True) != _python():
        mounts += ["--perms", "0755", "--dir", os.path.dirname(INSIDE), "--ro-bind", os.path.realpath(sys.base_prefix), INSIDE]
    # Root keeps its user namespace, so that the runner can become nobody: root is exempt from the limit on processes.
    user = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_KILL"] if os.geteuid() == 0 else ["--unshare-user"]
    return [
        found, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session",
        "--cap-drop", "ALL", *user, *mounts,
        "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--perms", "0777", "--dir", "/tmp/box",
        "--chdir", "/tmp/box", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin",
    ]  # fmt: skip


@lru_cache(maxsize=1)
def command() -> tuple[tuple[str, ...], str]:
    """(the isolating command, ""), or ((), the reason why there is none). It is tried once."""
    prefix = _bubblewrap()
    if not prefix:
        return (), "bubblewrap (bwrap) is not installed"
    tried = subprocess.run([*prefix, _python(isolated=True), "-I", "-S", "-c", "print(1)"], capture_output=True, timeout=30)
    if tried.stdout.strip() != b"1":
        return (), f"bubblewrap does not work here: {tried.stderr.decode(errors='replace').strip()[:200]}"
    return tuple(prefix), ""


def available() -> str:
    """The reason why programs cannot be isolated on this machine; "" if they can."""
    return command()[1]


def isolating(sandbox: str) -> list[str]:
    """The command prefix that isolates a program. Raises SandboxError where there is none, ValueError on an unknown mode."""
    if sandbox not in MODES:
        raise ValueError(f"sandbox: {sandbox!r} is none of {', '.join(MODES)}")
    if sandbox == "unsafe":
        return []
    prefix, why = command()
    if why:
        raise SandboxError(
            f"code cannot be run safely on this machine: {why}. Install bubblewrap and allow user namespaces, "
            "or pass sandbox='unsafe' to run it with limits only (it can then read and write all files that you can)"
        )
    return list(prefix)


def run(
    code: str, tests: Sequence[Any], fn: str | None = None, limits: Limits | None = None, sandbox: str = "bubblewrap", stop: bool = True
) -> list[Ran]:
    """Run `code` on every test: text for standard input, or a list of arguments for the function `fn` (of class Solution if there is one).

    `stop`: end at the first test that fails by an error or by time. The result has no entry for the tests after it. Raises SandboxError.
    """
    limits = limits or Limits()
    prefix = isolating(sandbox)
    job = json.dumps(
        {"code": code, "fn": fn, "tests": list(tests), "stop": stop, "nobody": bool(prefix) and os.geteuid() == 0, **asdict(limits)}
    ).encode()
    runner = resources.files("vlrl_rewards.code").joinpath("runner.py").read_text()
    total = min(limits.total_seconds, limits.seconds * len(tests) + 5.0)
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryDirectory() as folder:
        stdin.write(job)
        stdin.seek(0)
        process = subprocess.Popen(
            [*prefix, _python(isolated=bool(prefix)), "-I", "-S", "-c", runner], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd=folder, env={"PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        try:
            out = _collect(process, total, (limits.output + 1000) * (len(tests) + 1))
        finally:
            _kill(process)
    return _results(out)


def _collect(process: subprocess.Popen[bytes], seconds: float, most: int) -> bytes:
    assert process.stdout is not None
    fd, out, deadline = process.stdout.fileno(), bytearray(), time.monotonic() + seconds
    while len(out) < most:
        ready = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]
        chunk = os.read(fd, 1 << 16) if ready else b""
        if not chunk:
            break
        out += chunk
    return bytes(out)


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _results(out: bytes) -> list[Ran]:
    if not out.startswith(b'{"ready": true}\n'):
        raise SandboxError(f"the sandbox did not start (its output: {out[:200]!r}); this is no verdict on the program")
    found: list[Ran] = []
    for line in out.split(b"\n")[1:]:
        try:
            row = json.loads(line)
            if row["i"] != len(found):
                break
            found.append(Ran(str(row["status"]), str(row["out"])))
        except (ValueError, TypeError, KeyError):
            break
    return found
