"""Python processes that have imported torch and the trainer already: a server imports them once, and each
process is its fork. Ranks that only have to give numbers, or stop at a signal, start this way; ranks that are
killed, and what resumes them, start Python itself as a user does (tests/reliability/test_lost_ranks.py,
tests/journeys).

`warm.py serve SOCKET` is the server; `warm.py ask SOCKET ARGUMENTS` stands where `python ARGUMENTS` would.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

IMPORTS = (
    "accelerate.commands.launch",
    "torch.distributed.run",
    "transformers",
    "torch.distributed.fsdp",
    "peft",
    "vlrl.cli.train",
    "vlrl.trainer.session",
    "vlrl.training",
    "vlrl.engine.hf.engine",
    "vlrl.methods.core.policy_loss",
    "vlrl_rewards.math.answer",
    "pint",
    "pydantic.type_adapter",
    "safetensors.torch",
    "pyarrow.dataset",
    "pyarrow.parquet",
)
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@contextmanager
def warm_python(folder: Path) -> Iterator[str]:
    """The path of a program that takes the arguments of Python. Launchers of torch start their ranks with it
    as well where the variable PYTHON_EXEC names it."""
    address, program = str(folder / "socket"), folder / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{__file__}" ask "{address}" "$@"\n')
    program.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, __file__, "serve", address], cwd=Path(__file__).parents[1], stdin=subprocess.PIPE
    )
    try:
        yield str(program)
    finally:
        server.stdin.close()
        server.wait(timeout=300)


def ask(address: str, arguments: list[str]) -> int:
    """Run one process with this one's streams, folder and environment; signals go to it. Gives back its exit
    code."""
    with socket.socket(socket.AF_UNIX) as server:
        deadline = time.monotonic() + 500
        while server.connect_ex(address):  # the server is still importing
            if time.monotonic() > deadline:
                raise SystemExit("the server of warm processes does not answer")
            time.sleep(0.05)
        job = json.dumps({"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)})
        socket.send_fds(server, [len(job.encode()).to_bytes(8, "big")], [0, 1, 2])
        server.sendall(job.encode())
        if started := received(server, 8):
            pid = int.from_bytes(started, "big")
            for number in PASSED_ON:
                signal.signal(number, lambda number, _: passed_on(pid, number))
        answer = received(server, 16)
    if not answer:
        raise SystemExit("the server of warm processes has ended")
    return int(answer)


def received(server: socket.socket, size: int) -> bytes:
    """Nothing where the server has ended."""
    with suppress(ConnectionError):
        return server.recv(size)
    return b""


def passed_on(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has ended by itself
        os.kill(pid, number)


def prepare() -> None:
    """Import what a run does. Libraries import most of it where a model is built, and a run imports the
    plug-ins of its config."""
    import gc
    import importlib

    import torch  # noqa: F401

    gc.disable()
    for name in IMPORTS:
        importlib.import_module(name)
    registry = importlib.import_module("vlrl.plugins.registry")
    policy = importlib.import_module("vlrl.policy")
    for family in ("text", "qwen2_5_vl"):
        assert policy.Policy(registry.build(policy.Family, {"name": family, "tiny": {}})).processor
    gc.freeze()
    gc.enable()


def serve(address: str) -> None:
    """Fork for each connection until the standard input ends, which it does with the suite."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        prepare()  # who asks meanwhile waits, and hears at once where this fails
        while sys.stdin not in (ready := select.select([listener, sys.stdin], [], [], 1.0)[0]):
            if ready:
                connection = listener.accept()[0]
                if os.fork() == 0:
                    listener.close()
                    os._exit(keep(connection))
                connection.close()
            reap()


def reap() -> None:
    """Collect the forks that have ended, and with them what they spent."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def keep(connection: socket.socket) -> int:
    """Run the process of one connection and tell how it ended; it ends when the one that asked does."""
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    left, text = int.from_bytes(head, "big"), b""
    while len(text) < left:
        text += connection.recv(left - len(text))
    pid = os.fork()
    if pid == 0:
        connection.close()
        os._exit(become(json.loads(text), streams))
    for stream in streams:
        os.close(stream)
    process = os.pidfd_open(pid)
    with suppress(BrokenPipeError):
        connection.sendall(pid.to_bytes(8, "big"))
    if connection in select.select([process, connection], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):
        connection.sendall(str(code if code >= 0 else 128 - code).encode())
    return 0


def become(job: dict, streams: list[int]) -> int:
    """`python ARGUMENTS` in this process."""
    import atexit
    import runpy
    import traceback

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdout.reconfigure(line_buffering=True)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a suite in the background
    arguments = job["arguments"][job["arguments"][0] == "-u" :]  # launchers ask for unbuffered output
    code = 0
    try:
        if arguments[0] == "-m":
            sys.argv, sys.path[0] = ["-m", *arguments[2:]], job["folder"]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            sys.stderr.write(error.code + "\n")
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    return code


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        raise SystemExit(ask(sys.argv[2], sys.argv[3:]))
