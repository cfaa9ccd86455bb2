"""`vlrl export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlrl.interop.export import export as write


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or of one of its checkpoints.")],
    to: Annotated[Path, typer.Option("--to", help="The folder to write; empty or missing.")],
    checkpoint: Annotated[
        int | None, typer.Option("--checkpoint", help="The step of the checkpoint. Default: the newest one.")
    ] = None,
    merge_lora: Annotated[
        bool,
        typer.Option("--merge-lora", help="Merge the adapter into its base. Default: the adapter alone."),
    ] = False,
) -> None:
    """Write a run's model as a folder that plain transformers loads, and print how."""
    done = write(run, to, checkpoint, merge_lora)
    what = "the adapter, which names its base model" if done.is_adapter else "the model"
    typer.echo(f"wrote {what} and the processor of step {done.step} to {done.folder}")
    auto = (
        "AutoModelForImageTextToText"
        if (done.folder / "processor_config.json").is_file()
        else "AutoModelForCausalLM"
    )
    typer.echo(f'load it:  from transformers import {auto}; {auto}.from_pretrained("{done.folder}")')
