"""What remembering, kept keys and values and shared passes save: tokens and CPU seconds with and without, one
thread, a random text model.

python scripts/bench_old_work.py               # a Markdown table
python scripts/bench_old_work.py --repeats 7
"""

from __future__ import annotations

from typing import Annotated

import torch
import typer

from vlrl.bench.old_work import CASES, measure, ratio


def main(
    repeats: Annotated[int, typer.Option(help="Counted runs of each side; the two sides take turns.")] = 3,
) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    typer.echo(
        "| work | tokens without | tokens with | CPU s without | CPU s with | share of the CPU s "
        "|\n|---|---|---|---|---|---|"
    )
    for case in CASES:
        found = measure(case, repeats)
        (tokens, seconds), (fewer, less) = found["without"], found["with"]
        typer.echo(
            f"| {case} | {tokens:,.0f} | {fewer:,.0f} | {seconds:.3f} | {less:.3f} | "
            f"{ratio(seconds, less):.2f} |"
        )


if __name__ == "__main__":
    typer.run(main)
