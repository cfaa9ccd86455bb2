"""`vlrl export-task`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlrl.cli.words import ConfigWords, load_words
from vlrl.interop.verifiers_export import export_task as write

OPTIONS = ("--to", "--name", "--count", "--help")


def export_task(
    configs: ConfigWords,
    to: Annotated[Path, typer.Option("--to", help="The folder to write; empty or missing.")],
    name: Annotated[
        str, typer.Option("--name", help="The name of its module. Default: that of the folder.")
    ] = "",
    count: Annotated[int, typer.Option("--count", help="The most rows of each split.")] = 1000,
) -> None:
    """Write a config's task (rows, environment, rewards) as a package that verifiers 0.1 and 0.4 load."""
    done = write(load_words(configs, options=OPTIONS), to, name, count)
    rows = ", ".join(f"{number} rows of {split}" for split, number in done.rows.items())
    typer.echo(f"wrote the task with {rows} to {done.folder}")
    typer.echo(f"use it:  pip install {done.folder}; vf-eval {done.module}  (its rewards need vlrl)")
