"""A server process: started on a free loopback port with a random token, watched, replaced when it dies,
ended with this process."""

from __future__ import annotations

import atexit
import contextlib
import ipaddress
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from vlrl.services.http import JsonClient, ServiceError
from vlrl.services.token_guard import TOKEN_VARIABLE

WATCHDOG = Path(__file__).with_name("watchdog.py")
# what a launcher says of the training process, which a server would take as said of itself
LAUNCHER = (
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LOCAL_",
    "GROUP_",
    "ROLE_",
    "TORCHELASTIC_",
    "ACCELERATE_",
    "FSDP_",
)


def free_port(host: str) -> int:
    """A port that is free at the moment."""
    with socket.socket() as s:
        s.bind((host, 0))
        return s.getsockname()[1]


def is_loopback(host: str) -> bool:
    """Whether an address or a name is this machine's own, out of reach of others."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def _own_environment() -> dict[str, str]:
    """This process's variables without those of a launcher of several processes."""
    return {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER)}


class Server:
    """A process that runs `command(port)`. It is ready when /health answers; a dead one is started again, at
    most `restarts` times.

    `after_start(server)` runs after every start but the first (to load the present weights into a
    replacement). With `port` 0 each start takes a free one; without `token` a random one is made.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        log: Path,
        host: str = "127.0.0.1",
        env: dict[str, str] | None = None,
        restarts: int = 3,
        start_timeout: float = 600.0,
        after_start: Callable[[Server], None] | None = None,
        token: str = "",
        port: int = 0,
    ) -> None:
        self.command, self.log, self.host = command, log, host
        self.env, self.restarts, self.start_timeout, self.after_start = (
            env or {},
            restarts,
            start_timeout,
            after_start,
        )
        self.token, self.port = token or secrets.token_urlsafe(24), port
        self.starts = 0
        self.lock = threading.Lock()
        self.process: subprocess.Popen | None = None
        self.url = ""
        atexit.register(self.close)
        self.start()

    def start(self) -> None:
        """Launch the process without waiting for it."""
        self._end_group(signal.SIGKILL)  # the workers of a dead server would keep its memory
        port = self.port or free_port(self.host)
        self.url = f"http://{self.host}:{port}"
        self.starts += 1
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-S", str(WATCHDOG), *self.command(port)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**_own_environment(), **self.env, TOKEN_VARIABLE: self.token},
            )

    def _end_group(self, signal_number: int) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(
                    self.process.pid, signal_number
                )  # it leads its own session, so its group keeps its number after its death

    def wait(self) -> Server:
        """Wait until it is ready. Raises ServiceError with the end of its log if it dies or takes too
        long."""
        client = JsonClient(self.url, self.token)
        end = time.monotonic() + self.start_timeout
        while client.status() != 200:
            code = self.exit_code()
            if code is not None or time.monotonic() > end:
                state = (
                    f"ended with code {code}"
                    if code is not None
                    else f"was not ready after {self.start_timeout:.0f} s"
                )
                tail = self.log.read_bytes()[-1500:].decode(errors="replace")
                raise ServiceError(f"the server {state}; its log ({self.log}) ends with:\n{tail}")
            time.sleep(0.2)
        client.close()
        return self

    def ensure(self) -> str:
        """The URL of a running server; a dead one is replaced first. Raises ServiceError when it has died
        more than `restarts` times."""
        with self.lock:
            if self._is_dead():
                if self.starts > self.restarts:
                    raise ServiceError(
                        f"the server died {self.starts} times (engine.restarts is {self.restarts}); see "
                        f"{self.log}"
                    )
                self.start()
                self.wait()
                if self.after_start is not None:
                    self.after_start(self)
            return self.url

    def _is_dead(self) -> bool:
        """Whether the process has ended, or answers 503 because its engine has: a server outlives its killed
        worker by seconds.

        No answer is no sign of death: the server may be busy.
        """
        if self.exit_code() is not None:
            return True
        client = JsonClient(self.url, self.token)
        try:
            return client.status() == 503
        finally:
            client.close()

    def exit_code(self) -> int | None:
        """The exit code of the process; None while it runs."""
        assert self.process is not None
        return self.process.poll()

    def close(self) -> None:
        """End the process and all its child processes."""
        process, self.process = self.process, None
        if process is None:
            return
        for signal_number, grace in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 15.0)):
            try:
                os.killpg(process.pid, signal_number)
                process.wait(grace)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        process.wait()
        atexit.unregister(self.close)
