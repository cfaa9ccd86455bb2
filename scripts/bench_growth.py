"""How cost grows with group size, prompt, answer and picture size, ranks, rewards, dataset rows and run
length: CPU seconds and fitted exponents.

    python scripts/bench_growth.py                      # all curves, a Markdown table
    python scripts/bench_growth.py --plot growth.svg    # and a picture of them
    python scripts/bench_growth.py "recorded steps" --json

One thread, a text model of width 64. Exponent 1 is linear; the last column is that of the two largest fitted
sizes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer

from vlrl.bench.growth import CURVES, measure
from vlrl.bench.growth_plot import plot


def main(
    curves: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(CURVES)}; all by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    picture: Annotated[
        Path | None, typer.Option("--plot", help="Write the curves as an SVG picture.")
    ] = None,
) -> None:
    """Measure, print and draw."""
    torch.set_num_threads(1)
    if unknown := set(curves or ()) - set(CURVES):
        raise typer.BadParameter(f"no curve named {sorted(unknown)[0]!r}; there are {', '.join(CURVES)}")
    if not as_json:
        typer.echo("| cost against | sizes | CPU s | exponent | at the end |\n|---|---|---|---|---|")
    result = {}
    for name in curves or CURVES:
        result[name] = found = measure(CURVES[name])
        if not as_json:
            seconds = ", ".join(f"{value:.3g}" for value in found["seconds"].values())
            sizes = ", ".join(f"{size:,}" for size in found["seconds"])
            typer.echo(
                f"| {name} | {sizes} | {seconds} | {found['exponent']:.2f} | {found['exponent_at_end']:.2f} |"
            )
    if as_json:
        typer.echo(json.dumps(result))
    if picture:
        picture.write_text(plot(result), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
