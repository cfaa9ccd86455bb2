"""`vlrl report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlrl.logging.report import render_report
from vlrl.plugins.registry import ConfigError


def report(folder: Annotated[Path, typer.Argument(help="The folder of a run.")]) -> None:
    """Write report.html of a run, finished or still running, and print its path."""
    if not (folder / "metrics.jsonl").is_file():
        raise ConfigError(
            f"report: {str(folder)!r} holds no metrics.jsonl; give the folder of a run, for instance "
            "runs/quickstart"
        )
    typer.echo(render_report(folder))
