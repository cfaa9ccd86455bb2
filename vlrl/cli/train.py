"""`vlrl train`."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from vlrl.registry import ConfigError

if TYPE_CHECKING:
    from vlrl.config import Config
    from vlrl.launch import Launch


def train(
    configs: Annotated[list[str], typer.Argument(help="Configs (files or names, merged left to right) and overrides like steps=20.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint in the run's folder.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that the folder holds, once the new one has a checkpoint.")] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="The run's folder; the same as output=...")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live view.")] = False,
    processes: Annotated[int, typer.Option(help="Training processes over all machines, one per GPU, through `accelerate launch`.")] = 0,
    sharding: Annotated[str, typer.Option(help="With --processes: ddp, zero1, zero2, zero3, fsdp2 ... (configs/accelerate).")] = "ddp",
    nodes: Annotated[int, typer.Option(help="With --processes: machines.")] = 1,
    node_rank: Annotated[int, typer.Option(help="With --nodes: the number of this machine, from 0.")] = 0,
    head: Annotated[str, typer.Option(help="With --nodes: the address of machine 0.")] = "",
) -> None:
    """Train a policy: `vlrl train configs/quickstart.yaml`, `vlrl train experiments/lab_counting methods/dapo steps=50`."""
    from vlrl.cli.words import load_words

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    _quiet_libraries()
    config = load_words(configs, [f"output={output}"] if output else [], options=OPTIONS)
    if overwrite and resume:
        raise ConfigError("--overwrite and --resume exclude each other: the first replaces what the second continues from")
    main = int(os.environ.get("RANK", "0")) == 0
    from vlrl.launch import LAUNCHED, Launch

    if processes and LAUNCHED not in os.environ:
        raise typer.Exit(_launch(Launch(processes, sharding, nodes, node_rank, head), config))
    for kept in config.kept if main else ():
        sys.stderr.write(f"{kept}\n")
    from vlrl.trainer.train import train as run_training

    with redirect_stdout(sys.stderr):  # output of libraries does not belong to the summary
        summary = run_training(config, resume=resume, live=False if quiet or as_json else None, overwrite=overwrite)
    if main:
        typer.echo(json.dumps(summary, indent=2) if as_json else describe(summary))


OPTIONS = (
    "--resume", "--overwrite", "--output", "--json", "--quiet", "--processes", "--sharding", "--nodes", "--node-rank", "--head", "--help",
)  # fmt: skip


def _launch(launch: Launch, config: Config) -> int:
    """Write the launch file into the run's folder and run this command again under `accelerate launch`; returns its exit code."""
    import subprocess

    folder = Path(str(config.tree.get("output") or "runs/unnamed"))
    settings = launch.settings()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "launch.yaml"
    file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    command = launch.command(file, sys.argv[sys.argv.index("train") + 1 :])
    sys.stderr.write(f"{shlex.join(command)}\n")
    return subprocess.run(command, env=launch.environment(), check=False).returncode


def describe(summary: dict[str, Any]) -> str:
    """The summary as text."""
    lines = []
    heldout = summary["heldout"]
    for task in sorted({task for scores in heldout.values() for task in scores}):
        steps = " -> ".join(f"{name} {scores[task]:.3f}" for name, scores in heldout.items() if task in scores)
        lines.append(f"held-out {task}: {steps}")
    lines.append("seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in summary["seconds"].items()))
    if "overlap" in summary:
        lines.append("collecting ahead, seconds: " + ", ".join(f"{name.replace('_', ' ')} {value:.1f}" for name, value in summary["overlap"].items()))
    lines += [f"{name}: {summary[name]}" for name in ("checkpoint", "metrics", "report")]
    return "\n".join(lines)


def _quiet_libraries() -> None:
    import warnings

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
