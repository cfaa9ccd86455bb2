"""`vlrl train --ray`: a run's machines are actors that Ray places on a cluster; each starts its ranks as
`vlrl train --node-rank` does on a machine. A run that loses a node goes on from its last checkpoint."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl.plugins.registry import ConfigError
from vlrl.services.failures import RankLostError, StoppedError
from vlrl.services.http import ServiceError
from vlrl.services.ray_cluster import SHARED, Machine, connect
from vlrl.trainer.ranks.launch import Launch
from vlrl.trainer.ranks.stopping import SIGNALS, STOP_FILE

POLL = 0.5  # seconds
# of the words of `vlrl train`, with a value: what a machine is told anew
_TOLD = ("--ray", "--processes", "--nodes", "--node-rank", "--head")


class _NodeLostError(Exception):
    """A node with its machine is gone."""


@dataclass(frozen=True)
class RayLaunch:
    """A run on a Ray cluster: `launch.nodes` actors of `launch.processes / launch.nodes` ranks each, spread
    over the nodes that have room (several on one node where the cluster has fewer).

    Like OpenRLHF (arXiv:2405.11143), which places its actors by Ray's placement groups; there an actor is a
    rank, here it is the launcher of a machine's ranks.

    Args:
        address: HOST:PORT of the cluster's head, or "auto".
        launch: Ranks, machines and sharding.
        folder: The run's folder, which all nodes see.
        patience: Seconds that the ranks which are left have to end by themselves (`watch.rank_timeout`, and
            a minute).
        restarts: Nodes that a run may lose.
        place_seconds: How long Ray may look for room.
    """

    address: str
    launch: Launch
    folder: Path
    patience: float = 120.0
    restarts: int = 3
    place_seconds: float = 600.0

    def run(self, words: Sequence[str]) -> int:
        """Train, and go on after each lost node; the exit code of `vlrl train`. Raises ConfigError where no
        cluster answers, or where it has no room."""
        try:
            ray = connect(self.address)
        except ServiceError as error:
            raise ConfigError(str(error)) from None
        stopped: list[int] = []
        (self.folder / STOP_FILE).unlink(missing_ok=True)

        def handle(number: int, _: Any) -> None:
            stopped.append(number)  # the ranks find the file after their step
            (self.folder / STOP_FILE).write_text(signal.Signals(number).name, encoding="utf-8")

        numbers = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            for left in range(self.restarts, -1, -1):
                code = self._attempt(ray, words, stopped)
                if stopped and code:
                    return StoppedError.exit_code if len(stopped) == 1 else 128 + stopped[1]
                if code != RankLostError.exit_code or not left:
                    return code
                sys.stderr.write("vlrl: a node is lost; the run goes on from its last checkpoint\n")
                words = [*(word for word in words if word not in ("--overwrite", "--resume")), "--resume"]
            return RankLostError.exit_code
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            ray.shutdown()

    def _attempt(self, ray: Any, words: Sequence[str], stopped: Sequence[int]) -> int:
        """One start of all machines, to its end; the first exit code that is not 0, and that of a lost rank
        where a node is gone."""
        each = self.launch.processes // self.launch.nodes
        share = {"CPU": each} | ({"GPU": each} if ray.cluster_resources().get("GPU") else {})
        group = ray.util.placement_group([share] * self.launch.nodes, strategy="SPREAD")
        try:
            if not group.wait(self.place_seconds):
                raise ConfigError(
                    f"--ray: no room for {self.launch.nodes} x {share} within {self.place_seconds:.0f} s; "
                    f"the cluster has {_told(ray.cluster_resources())}, of which "
                    f"{_told(ray.available_resources())} are free; lower --processes or add nodes"
                )
            machines = self._machines(ray, group, share)
            try:
                return self._watch(ray, machines, self._start(ray, machines, words), stopped)
            except _NodeLostError:
                return RankLostError.exit_code
            finally:
                for machine in machines:
                    with contextlib.suppress(ray.exceptions.RayError):
                        ray.get(machine.end.remote(), timeout=30.0)
                    ray.kill(machine)
        finally:
            ray.util.remove_placement_group(group)

    def _machines(self, ray: Any, group: Any, share: dict[str, int]) -> list[Any]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Bundle

        return [
            ray.remote(Machine)
            .options(
                num_cpus=share["CPU"],
                num_gpus=share.get("GPU", 0),
                scheduling_strategy=Bundle(group, placement_group_bundle_index=index),
            )
            .remote()
            for index in range(self.launch.nodes)
        ]

    def _start(self, ray: Any, machines: Sequence[Any], words: Sequence[str]) -> list[Any]:
        """Start the launcher of each machine; returns the machines."""
        kept = without(words, _TOLD)
        with _lost_nodes(ray):
            host, port = ray.get(machines[0].address.remote())
            for rank, machine in enumerate(machines):
                own = ["--processes", str(self.launch.processes), "--nodes", str(self.launch.nodes)]
                own += ["--node-rank", str(rank), "--head", f"{host}:{port}"]
                log = (self.folder / f"ray-{rank}.log").resolve()
                arguments = ["-m", "vlrl", "train", *kept, *own]
                ray.get(
                    machine.start.remote(arguments, str(log), str(Path.cwd()), {SHARED: str(self.folder)})
                )
        return list(machines)

    def _watch(self, ray: Any, machines: Sequence[Any], running: list[Any], stopped: Sequence[int]) -> int:
        """Pass on what the machines write until all have ended; ranks that have lost a machine end by
        themselves."""
        codes: list[int] = []
        until, lost = float("inf"), False
        while running and time.monotonic() < until and len(stopped) < 2:
            for machine in list(running):
                try:
                    with _lost_nodes(ray):
                        code, text = ray.get(machine.poll.remote())
                except _NodeLostError:
                    running.remove(machine)
                    lost = True
                    continue
                sys.stderr.write(text)
                if code is not None:
                    running.remove(machine)
                    codes.append(code)
            if (lost or any(codes)) and until == float("inf"):
                until = time.monotonic() + self.patience
            time.sleep(POLL)
        if lost or any(code < 0 for code in codes):
            return RankLostError.exit_code
        # the machine whose own rank failed says why; the others say that it is lost
        own = [code for code in codes if code and code != RankLostError.exit_code]
        return own[0] if own else max([*codes, RankLostError.exit_code if running else 0])


@contextlib.contextmanager
def _lost_nodes(ray: Any) -> Any:
    """A call of an actor whose node is gone raises _NodeLostError."""
    try:
        yield
    except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError) as error:
        raise _NodeLostError(str(error)) from None


def without(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """The words without these options and their values ("--ray auto", "--ray=auto")."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in options:
            skip = True
        elif word.partition("=")[0] not in options:
            kept.append(word)
    return kept


def _told(resources: dict[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
