"""Several processes: the line of `accelerate launch` for a run, and the DeepSpeed options that it names."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vlrl.config import folders
from vlrl.plugins.registry import ConfigError, suggest
from vlrl.trainer.ranks import extension_locks

_VARIABLE = "ACCELERATE_DEEPSPEED_CONFIG_FILE"
PORT = 29500  # of the first machine, where --head names none
LAUNCHED = "VLRL_LAUNCHED"  # in the environment of processes that `vlrl train --processes` has started


@dataclass(frozen=True)
class Launch:
    """How a run is started: `processes` in all, over `nodes` machines of which this is number `rank`;
    `sharding` is a file of configs/accelerate, `head` the first machine's address, with a port if it is not
    29500 ("10.0.0.1:29600")."""

    processes: int
    sharding: str = "ddp"
    nodes: int = 1
    rank: int = 0
    head: str = ""

    def __post_init__(self) -> None:
        if self.processes < 1 or self.nodes < 1 or not 0 <= self.rank < self.nodes:
            numbers = f"{self.processes}, {self.nodes}, {self.rank}"
            raise ConfigError(
                f"--processes and --nodes must be at least 1, --node-rank below --nodes, got {numbers}"
            )
        if self.processes % self.nodes:
            raise ConfigError(
                f"--processes {self.processes} is the number over all machines; it must be a multiple of "
                f"--nodes {self.nodes}"
            )
        if self.nodes > 1 and not self.head:
            raise ConfigError(
                "--nodes: give the first machine's address too, --head ADDRESS, and on each machine its "
                "--node-rank"
            )
        if self.head.count(":") == 1 and not self.head.partition(":")[2].isdigit():
            raise ConfigError(
                f"--head: {self.head!r} has a port that is no number; give ADDRESS or ADDRESS:PORT, for "
                "instance 10.0.0.1:29600"
            )

    @property
    def address(self) -> str:
        """The first machine's address without its port."""
        return self.head.partition(":")[0] if self.head.count(":") == 1 else self.head

    @property
    def port(self) -> int:
        """The first machine's port."""
        return int(self.head.partition(":")[2]) if self.head.count(":") == 1 else PORT

    def settings(self) -> dict[str, Any]:
        """The accelerate config: that of `sharding`, with our numbers and the absolute path of its DeepSpeed
        JSON."""
        path = launch_file(self.sharding)
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        tree |= {"num_processes": self.processes, "num_machines": self.nodes, "machine_rank": self.rank}
        if self.nodes > 1:
            tree |= {"main_process_ip": self.address, "main_process_port": self.port}
        if named := (tree.get("deepspeed_config") or {}).get("deepspeed_config_file"):
            tree["deepspeed_config"]["deepspeed_config_file"] = str(deepspeed_file(named, path.parents[2]))
        return tree

    def command(self, config_file: Path, words: Sequence[str]) -> list[str]:
        """The command line of `accelerate launch` (`main` below), with the words of `vlrl train`."""
        port = [] if self.nodes > 1 else ["--main_process_port", "0"]  # a free one
        return [
            sys.executable,
            "-m",
            "vlrl.trainer.ranks.launch",
            "--config_file",
            str(config_file),
            *port,
            "-m",
            "vlrl",
            "train",
            *words,
        ]

    def environment(self) -> dict[str, str]:
        """The environment of the processes: without a GPU, DeepSpeed is told so."""
        return {
            **os.environ,
            LAUNCHED: "1",
            **({} if gpus() else {"DS_ACCELERATOR": os.environ.get("DS_ACCELERATOR", "cpu")}),
        }


def gpus() -> bool:
    """Whether this machine has an NVIDIA GPU that processes may use; torch is not imported."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", " ") != "" and any(Path("/dev").glob("nvidia[0-9]*"))


def launch_file(name: str) -> Path:
    """The file of configs/accelerate with that name. Raises ConfigError."""
    found = {
        path.stem: path for folder in reversed(folders()) for path in (folder / "accelerate").glob("*.yaml")
    }
    if name not in found:
        raise ConfigError(f"--sharding: no launch file named {name!r}.{suggest(name, found)}")
    return found[name]


def deepspeed_file(named: str, beside: Path = Path()) -> Path:
    """The absolute path of the DeepSpeed JSON that a launch file names by "configs/deepspeed/zero2.json",
    from any folder. Raises ConfigError."""
    tried = [Path(named), beside / named, *(folder.joinpath(*Path(named).parts[1:]) for folder in folders())]
    for path in tried:
        if path.is_file():
            return path.resolve()
    known = {path.name for folder in folders() for path in (folder / "deepspeed").glob("*.json")}
    raise ConfigError(f"deepspeed_config_file: no file {named!r}.{suggest(Path(named).name, known)}")


def find_deepspeed_config() -> None:
    """Under `accelerate launch`: make the path of a shipped DeepSpeed JSON absolute, and free DeepSpeed's
    extensions of stale build locks.

    Raises ConfigError where there is no such JSON.
    """
    named = os.environ.get(_VARIABLE, "")
    if named and named != "none":
        os.environ[_VARIABLE] = str(deepspeed_file(named))
    if (
        os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"
        and os.environ.get("LOCAL_RANK", "0") == "0"
    ):
        extension_locks.watch()


def main() -> None:
    """`accelerate launch`, which ends with the exit code of the first rank that failed, and without a
    traceback of its own: the ranks say why."""
    from accelerate.commands.launch import main as launch
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        launch()
    except ChildFailedError as error:
        codes = [failure.exitcode for failure in error.failures.values()]
        raise SystemExit(next((code for code in codes if code > 0), 128 - codes[0])) from None


if __name__ == "__main__":
    main()
