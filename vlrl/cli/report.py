"""`vlrl report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlrl.registry import ConfigError


def report(folder: Annotated[Path, typer.Argument(help="The folder of a run.")]) -> None:
    """Write report.html of a run (also of one that is still going on) and print where it is."""
    if not (folder / "metrics.jsonl").is_file():
        raise ConfigError(f"report: {str(folder)!r} holds no metrics.jsonl; give the folder of a run, for instance runs/quickstart")
    from vlrl.logging.report import render_report

    typer.echo(render_report(folder))
