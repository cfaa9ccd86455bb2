"""`vlrl train`."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from vlrl.cli.words import ConfigWords, load_words
from vlrl.plugins.registry import ConfigError
from vlrl.services import third_party as libraries
from vlrl.services.failures import StoppedError
from vlrl.services.parent import end_with_launcher
from vlrl.trainer.dry_run import dry_run as list_needs
from vlrl.trainer.ranks.launch import LAUNCHED, Launch
from vlrl.trainer.ranks.ray_launch import RayLaunch
from vlrl.trainer.ranks.stopping import SIGNALS, STOP_FILE
from vlrl.training import train as run_training

if TYPE_CHECKING:
    from vlrl.config import Config
    from vlrl.trainer.ranks.launch import Launch


HeadAddress = Annotated[str, typer.Option(help="With --nodes: the address of machine 0, or ADDRESS:PORT.")]
RayAddress = Annotated[
    str, typer.Option(help="HOST:PORT of a Ray cluster (or auto) that places the --nodes machines by itself.")
]
Processes = Annotated[
    int | None,
    typer.Option(help="Training processes over all machines, one per GPU, through `accelerate launch`."),
]


def train(
    configs: ConfigWords,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint in the run's folder.")
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Replace the run that the folder holds, once the new one has a checkpoint."
        ),
    ] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", help="The run's folder; the same as output=...")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="List what the run would fetch and read, check a few records, and stop."
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No live view, and no lines about loading.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show the warnings and progress bars of libraries too.")
    ] = False,
    processes: Processes = None,
    sharding: Annotated[
        str, typer.Option(help="With --processes: ddp, zero1, zero2, zero3, fsdp2 ... (configs/accelerate).")
    ] = "ddp",
    nodes: Annotated[int, typer.Option(help="With --processes: machines.")] = 1,
    node_rank: Annotated[int, typer.Option(help="With --nodes: the number of this machine, from 0.")] = 0,
    head: HeadAddress = "",
    ray: RayAddress = "",
) -> None:
    """Train a policy: `vlrl train configs/quickstart.yaml`, `vlrl train experiments/lab_counting methods/dapo
    steps=50`."""
    libraries.log_to_stderr(logging.WARNING if quiet else logging.INFO)
    libraries.quiet(verbose)
    config = load_words(configs, [f"output={output}"] if output else [], options=OPTIONS)
    if overwrite and resume:
        raise ConfigError(
            "--overwrite and --resume exclude each other: the first replaces what the second continues from"
        )
    if dry_run:
        return typer.echo("\n".join(list_needs(config)))
    main = int(os.environ.get("RANK", "0")) == 0
    if ray:
        raise typer.Exit(_launch_on_ray(ray, processes or 1, sharding, nodes, config, as_json))
    if processes is not None and LAUNCHED not in os.environ:
        raise typer.Exit(_launch(Launch(processes, sharding, nodes, node_rank, head), config))
    for kept in config.kept if main else ():
        sys.stderr.write(f"{kept}\n")
    with redirect_stdout(sys.stderr):  # output of libraries does not belong to the summary
        summary = run_training(
            config, resume=resume, live=False if quiet or as_json else None, overwrite=overwrite
        )
    if main:
        typer.echo(json.dumps(summary, indent=2) if as_json else describe(summary))


OPTIONS = (
    "--resume", "--overwrite", "--output", "--json", "--dry-run", "--quiet", "--verbose",
    "--processes", "--sharding", "--nodes", "--node-rank", "--head", "--ray", "--help",
)  # fmt: skip


def _launch(launch: Launch, config: Config) -> int:
    """Write the launch file into the run's folder and run this command again under `accelerate launch`;
    returns its exit code.

    The file of a machine but the first is written elsewhere, since machines may share the run's folder and
    each file has its machine's rank.
    """
    folder = Path(str(config.tree.get("output") or "runs/unnamed"))
    settings = launch.settings()
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder if launch.rank == 0 else Path(tempfile.mkdtemp(prefix="vlrl-launch-"))) / "launch.yaml"
    file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    command = launch.command(file, sys.argv[sys.argv.index("train") + 1 :])
    sys.stderr.write(f"{shlex.join(command)}\n")
    return _run_and_stop(
        command,
        launch.environment(),
        folder,
        float((config.tree.get("watch") or {}).get("stop_seconds", 300.0)),
    )


def _launch_on_ray(
    address: str, processes: int, sharding: str, nodes: int, config: Config, as_json: bool
) -> int:
    """Have a Ray cluster run this command on its nodes; prints the summary that the run leaves behind and
    returns the exit code."""
    folder = Path(str(config.tree.get("output") or "runs/unnamed")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    # the head's address is known once Ray has placed the first machine
    launch = Launch(processes, sharding, nodes, head="placed by Ray")
    launch.settings()
    patience = float((config.tree.get("watch") or {}).get("rank_timeout", 60.0)) + 60.0
    code = RayLaunch(address, launch, folder, patience).run(sys.argv[sys.argv.index("train") + 1 :])
    if code == 0:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        typer.echo(json.dumps(summary, indent=2) if as_json else describe(summary))
    return code


def _run_and_stop(command: list[str], environment: dict[str, str], folder: Path, seconds: float) -> int:
    """Run the launcher; returns its exit code, and that of its ranks where they stopped as asked.

    Signals do not reach the ranks: torch's launcher would end them 30 seconds later. The first becomes the
    file `stop`, which the ranks find after their step; the second, or `seconds` and a minute after the first,
    ends all processes.
    """
    import signal
    import subprocess

    asked: list[int] = []

    def handle(number: int, _: Any) -> None:
        asked.append(number)
        if len(asked) == 1:
            (folder / STOP_FILE).write_text(signal.Signals(number).name, encoding="utf-8")
            signal.alarm(int(seconds) + 60)
        else:
            os.killpg(process.pid, signal.SIGTERM if len(asked) == 2 else signal.SIGKILL)
            signal.alarm(10)

    (folder / STOP_FILE).unlink(missing_ok=True)
    process = subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=end_with_launcher)
    numbers = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, handle) for number in (*numbers, signal.SIGALRM)}
    try:
        code = process.wait()
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked and code:
        return StoppedError.exit_code if len(asked) == 1 else 128 + asked[1]
    return code


def describe(summary: dict[str, Any]) -> str:
    """The summary as text."""
    lines = []
    heldout = summary["heldout"]
    for task in sorted({task for scores in heldout.values() for task in scores}):
        steps = " -> ".join(
            f"{name} {scores[task]:.3f}" for name, scores in heldout.items() if task in scores
        )
        lines.append(f"held-out {task}: {steps}")
        paid = [
            f"{name} {scores[task]:.3f}"
            for name, scores in (summary.get("heldout_rewards") or {}).items()
            if task in scores
        ]
        if paid:
            lines.append(f"held-out {task}, mean reward: {' -> '.join(paid)}")
    lines += answer_lines(summary.get("answers") or {})
    lines += [f"finding, {slot}: {one['text']}" for slot, one in (summary.get("findings") or {}).items()]
    lines.append("seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in summary["seconds"].items()))
    if "overlap" in summary:
        lines.append(
            "collecting ahead, seconds: "
            + ", ".join(f"{name.replace('_', ' ')} {value:.1f}" for name, value in summary["overlap"].items())
        )
    lines += [f"{name}: {summary[name]}" for name in ("checkpoint", "metrics", "report")]
    return "\n".join(lines)


def answer_lines(answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """The held-out answers that a summary keeps, a line each: question, right answer, then what was answered
    each time (+ correct, - wrong)."""
    if not answers:
        return []

    def line(text: str) -> str:
        shown = "".join(char if char.isprintable() else " " for char in text)
        return " ".join(shown.split())[:100]

    lines = [f"held-out answers ({' -> '.join(answers)}):"]
    for same in zip(*answers.values(), strict=False):
        said = " -> ".join(f"{'+' if one['correct'] else '-'} {line(one['text'])!r}" for one in same)
        lines.append(f"  {line(same[0]['question'])} [{line(same[0]['gold'])}]  {said}")
    return lines
