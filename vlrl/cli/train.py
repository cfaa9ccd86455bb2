"""`vlrl train`."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from vlrl.registry import ConfigError


def train(
    configs: Annotated[list[str], typer.Argument(help="Configs (files or names, merged left to right) and overrides like steps=20.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint in the run's folder.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete what the run's folder holds and start over.")] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="The run's folder; the same as output=...")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live view.")] = False,
) -> None:
    """Train a policy: `vlrl train configs/quickstart.yaml`, `vlrl train experiments/lab_counting methods/dapo phases.rl.steps=50`."""
    from vlrl.config import load

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    _quiet_libraries()
    files = [word for word in configs if "=" not in word]
    overrides = [word for word in configs if "=" in word] + ([f"output={output}"] if output else [])
    config = load(files, overrides)
    if overwrite and resume:
        raise ConfigError("--overwrite and --resume exclude each other: the first deletes what the second continues from")
    if overwrite:
        clear(Path(str(config.tree.get("output") or "runs/unnamed")))
    from vlrl.trainer.train import train as run_training

    with redirect_stdout(sys.stderr):  # output of libraries does not belong to the summary
        summary = run_training(config, resume=resume, live=False if quiet or as_json else None)
    if int(os.environ.get("RANK", "0")) == 0:
        typer.echo(json.dumps(summary, indent=2) if as_json else describe(summary))


def clear(folder: Path) -> None:
    """Delete a run's folder. Raises ConfigError for a folder that holds anything but a run."""
    if not folder.exists():
        return
    if any(folder.iterdir()) and not (folder / "config.yaml").is_file():
        raise ConfigError(f"output: {str(folder)!r} exists and is not the folder of a run, so it is not deleted; give another `output=`")
    if int(os.environ.get("RANK", "0")) == 0:
        shutil.rmtree(folder)


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
