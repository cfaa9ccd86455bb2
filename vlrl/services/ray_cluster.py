"""Processes on the nodes of a Ray cluster (https://docs.ray.io, read in 2.60): an actor per process, which
Ray places by CPUs and GPUs, and which ends the process when its node or the driver goes."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vlrl.services.http import ServiceError
from vlrl.services.parent import end_with_launcher
from vlrl.services.process import WATCHDOG, Server, free_port
from vlrl.services.third_party import pip_install
from vlrl.services.token_guard import TOKEN_VARIABLE

ADDRESS = "VLRL_RAY"  # in the environment of ranks that `vlrl train --ray` has placed: the cluster's address
SHARED = "VLRL_RAY_FOLDER"  # likewise: the run's folder, which all nodes see
# what nodes get of the driver's environment
PASSED = ("DS_", "GLOO_", "HF_", "NCCL_", "OMP_", "PYTHONPATH", "TOKENIZERS_", "VLLM_", "VLRL_", "WANDB_")


def connect(address: str) -> Any:
    """The module ray, connected to the cluster at `address`; "": that of `vlrl train --ray`, else of this
    machine. Raises ServiceError where ray is not installed or no cluster
    answers."""
    try:
        import ray
    except ImportError as error:
        raise ServiceError(
            f"--ray needs the package ray ({error}); install it: {pip_install('ray')}"
        ) from None
    address = address or os.environ.get(ADDRESS, "") or "auto"
    if not ray.is_initialized():
        _reach(address)
        environment = {key: value for key, value in os.environ.items() if key.startswith(PASSED)}
        try:
            ray.init(
                address=address,
                namespace="vlrl",
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": environment | {ADDRESS: address}},
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ServiceError(_unreachable(address, error)) from None
    return ray


def _reach(address: str) -> None:
    """Raises ServiceError where nobody listens: Ray itself would ask for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10.0).close()
    except (OSError, OverflowError) as error:
        raise ServiceError(_unreachable(address, error)) from None


def _unreachable(address: str, error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return (
        f"--ray: no cluster answers at {address!r} ({first}); give HOST:PORT of its head (`ray start --head` "
        "prints it), or `auto` on a machine of the cluster"
    )


class Machine:
    """An actor that runs one process on the node where Ray has placed it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.log, self.read = Path(os.devnull), 0

    def address(self) -> tuple[str, int]:
        """This node's address, and a port of it that is free."""
        import ray

        return ray.util.get_node_ip_address(), free_port("")

    def start(
        self,
        arguments: Sequence[str],
        log: str,
        folder: str,
        environment: Mapping[str, str],
        watched: bool = False,
    ) -> None:
        """Run this node's Python with `arguments` in `folder`; output is appended to `log`. `watched`: its
        children are ended with it (`services/watchdog.py`)."""
        self.log = Path(log)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.read = self.log.stat().st_size if self.log.exists() else 0
        watch = ["-S", str(WATCHDOG), sys.executable] if watched else []
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, *watch, *arguments],
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE if watched else subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=None if watched else end_with_launcher,
            )

    def poll(self) -> tuple[int | None, str]:
        """The exit code, None while the process runs, and what it has written since the last call."""
        code = self.process.poll() if self.process else None
        with self.log.open("rb") as file:
            file.seek(self.read)
            text = file.read()
        self.read += len(text)
        return code, text.decode(errors="replace")

    def end(self, grace: float = 0.0) -> None:
        """End the process: asked first where `grace` seconds are given, then killed."""
        if self.process is None:
            return
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 15.0)):
            if seconds and self.process.poll() is None:
                os.killpg(self.process.pid, number)
                until = time.monotonic() + seconds
                while self.process.poll() is None and time.monotonic() < until:
                    time.sleep(0.1)


class RayServer(Server):
    """A `Server` on a node of the cluster that Ray chooses; one whose node is gone is dead, and its
    replacement is placed anew.

    Args:
        address: Of the cluster.
        gpus: GPUs that a server takes.
        command, log, env, restarts, start_timeout, after_start: As of `Server`; `log` lies in a folder that
            the nodes share.
    """

    def __init__(
        self, address: str, gpus: int, command: Callable[..., Sequence[str]], log: Path, **options: Any
    ) -> None:
        self.ray, self.gpus, self.placed = connect(address), gpus, command
        self.machine: Any = None
        super().__init__(lambda port: [], log, **options)

    def start(self) -> None:
        self.close()
        actor = self.ray.remote(Machine)
        self.machine = actor.options(num_cpus=1, num_gpus=self.gpus, scheduling_strategy="SPREAD").remote()
        self.host, port = self.ray.get(self.machine.address.remote(), timeout=self.start_timeout)
        self.url = f"http://{self.host}:{port}"
        self.starts += 1
        environment = {**self.env, TOKEN_VARIABLE: self.token}
        arguments = list(self.placed(port, self.host))[1:]  # without the name of this machine's Python
        self.ray.get(self.machine.start.remote(arguments, str(self.log), os.getcwd(), environment, True))

    def exit_code(self) -> int | None:
        if self.machine is None:
            return -signal.SIGKILL
        try:
            code: int | None = self.ray.get(self.machine.poll.remote())[0]
        except self.ray.exceptions.RayError:  # its node is gone
            return -signal.SIGKILL
        return code

    def close(self) -> None:
        machine, self.machine = self.machine, None
        if machine is not None and self.ray.is_initialized():
            # a node that is gone has taken its process along
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.get(machine.end.remote(15.0), timeout=40.0)
            self.ray.kill(machine)
