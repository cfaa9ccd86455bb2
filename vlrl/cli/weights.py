"""`vlrl weights`: linearity and extrapolation of a run's weights over its checkpoints (arXiv:2601.04537)."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from vlrl.eval import weight_path as trajectory
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.checkpoints.files import folders

app = typer.Typer(
    no_args_is_help=True,
    help="Linearity and extrapolation of a run's weights over its checkpoints (arXiv:2601.04537).",
)


def _check(places: Sequence[Path]) -> None:
    """Raise ConfigError for a place without weights, before torch is imported."""
    for place in places:
        if not folders(place) and not any(place.glob("*.safetensors")):
            raise ConfigError(
                f"weights: no *.safetensors in {str(place)!r}; give the folder of a run, or of one of its "
                "checkpoints"
            )


@app.command()
def linearity(
    places: Annotated[
        list[Path],
        typer.Argument(
            help="A run's folder (all its checkpoints), or checkpoints and the model it began with."
        ),
    ],
    least_change: Annotated[
        float, typer.Option(help="Weights that move less over all checkpoints are left out.")
    ] = 1e-4,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers of every tensor as JSON and nothing else.")
    ] = False,
) -> None:
    """How linear the weights are in the step: mean R^2 per kind of tensor."""
    _check(places)
    path = trajectory.checkpoints(places)
    found = trajectory.linearity(path, least_change)
    if as_json:
        typer.echo(json.dumps({name: {"r2": r2, "weights": count} for name, (r2, count) in found.items()}))
        return
    if not found:
        raise ConfigError(
            f"weights: nothing moved by more than {least_change:g} over {len(path)} checkpoints; give a "
            "smaller --least-change"
        )
    kinds: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for name, value in found.items():
        kinds[re.sub(r"\.\d+\.", ".*.", name)].append(value)
    table = Table(
        "tensor", "weights that moved", "R^2", title=f"steps {', '.join(str(c.step) for c in path)}"
    )
    for kind, values in [*kinds.items(), ("all", list(found.values()))]:
        weights = sum(count for _, count in values)
        table.add_row(kind, f"{weights:,}", f"{sum(r2 * count for r2, count in values) / weights:.3f}")
    Console().print(table)


@app.command()
def extrapolate(
    old: Annotated[Path, typer.Argument(help="The earlier checkpoint, or the model the run began with.")],
    new: Annotated[Path, typer.Argument(help="The later checkpoint.")],
    step: Annotated[int, typer.Option(help="The step to extrapolate to, beyond the later checkpoint's.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder of the new model, for `vlrl eval --model`.")
    ],
) -> None:
    """Write the model that linear extrapolation of the weights reaches at a later step."""
    _check([old, new])
    ends = trajectory.checkpoints([old, new])
    if len(ends) != 2:
        raise ConfigError(
            f"weights: {str(old)!r} and {str(new)!r} hold {len(ends)} checkpoints; give two, such as "
            "runs/x/checkpoints/step-000050"
        )
    if step <= ends[1].step:
        raise ConfigError(f"weights: --step {step} is not beyond {ends[1].step}, the later checkpoint's")
    first, last = ends
    moved = trajectory.extrapolate(first, last, step, output)
    typer.echo(
        f"{output}: {moved} of {len(ends[1].files)} tensors from step {ends[0].step} through "
        f"{ends[1].step} to {step}"
    )
