"""Servers that several training processes share: the first process launches, loads and replaces them, the
others only ask."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl.services.http import JsonClient, ServiceError
from vlrl.services.process import Server, free_port
from vlrl.services.ray_cluster import ADDRESS, SHARED, RayServer

log = logging.getLogger(__name__)


def this_process_alone(values: Sequence[Any]) -> list[Any]:
    """The values of all processes where there is one."""
    return list(values)


@dataclass(frozen=True)
class Ranks:
    """The training processes that share the servers: this one's number, and `gather`, which returns the
    values of all (a collective)."""

    rank: int = 0
    ranks: int = 1
    gather: Callable[[Sequence[Any]], list[Any]] = this_process_alone

    @property
    def first(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """The first process's value. A collective."""
        return self.gather([value])[0]

    def wait(self) -> None:
        """Wait for all processes. A collective."""
        self.gather([None])


class RemoteServer:
    """A server that another process launches and replaces, always at the same address."""

    starts = 1

    def __init__(self, url: str, token: str, start_timeout: float) -> None:
        self.url, self.token, self.start_timeout = url, token, start_timeout

    def ensure(self) -> str:
        """The URL, once the server answers. Raises ServiceError where it does not within `start_timeout`
        seconds."""
        client, end = JsonClient(self.url, self.token), time.monotonic() + self.start_timeout
        try:
            while client.status() != 200:
                if time.monotonic() > end:
                    raise ServiceError(
                        f"the server at {self.url} did not answer for {self.start_timeout:.0f} s; its log "
                        "is with the first process"
                    )
                time.sleep(0.5)
        finally:
            client.close()
        return self.url

    def close(self) -> None:
        """Nothing: the process that launched it ends it."""


def launch_server(
    command: Callable[..., Sequence[str]],
    log_file: Path,
    host: str,
    shared: bool,
    gpus: int,
    restarts: int,
    **options: Any,
) -> Server:
    """A server in this machine, or on a node of the Ray cluster that has placed this rank. What other ranks
    are told to reach (`shared`) keeps its port when it is replaced; on Ray it would move to another node, so
    that its death ends the run there."""
    if cluster := os.environ.get(ADDRESS, ""):
        return RayServer(cluster, gpus, command, log_file, restarts=0 if shared else restarts, **options)
    port = free_port(host) if shared else 0
    return Server(command, log_file, host, restarts=restarts, port=port, **options)


def server_folder() -> str:
    """A new folder for weights and logs: in the run's, which all nodes see, where Ray has placed this
    rank."""
    return tempfile.mkdtemp(prefix="vlrl-server-", dir=os.environ.get(SHARED) or None)


class ServerMonitor:
    """A thread that replaces dead servers, for the requests of other processes, until `close`."""

    def __init__(self, servers: Sequence[Server], every: float = 1.0) -> None:
        self.servers, self.every = list(servers), every
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name="vlrl-servers", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while self.servers and not self.ended.wait(self.every):
            for server in list(self.servers):
                # requests of this process call `ensure` themselves; other processes cannot start a server
                try:
                    server.ensure()
                except ServiceError as error:
                    log.error("%s", error)
                    self.servers.remove(server)

    def close(self) -> None:
        """Stop watching."""
        self.ended.set()
        self.thread.join()
