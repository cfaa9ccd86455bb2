"""Decoding of engine `hf` on one CPU thread: tokens per CPU-second of 64 rollouts of mean length 200, with
and without n-gram drafts.

python scripts/bench_decoding.py                          # both shapes, a Markdown table
python scripts/bench_decoding.py small --lookup 0 --lookup 4 --repeats 3
python scripts/bench_decoding.py --copy FOLDER --lookup 0 --lookup 4   # a real model that repeats a text
(vlrl fetch smollm2)
"""

from __future__ import annotations

from typing import Annotated

import torch
import typer

from vlrl.bench.decoding import copy_text, decode
from vlrl.bench.limit import SHAPES


def main(
    shapes: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(SHAPES)}; all by default.")
    ] = None,
    mean: Annotated[int, typer.Option(help="Mean number of tokens of a rollout.")] = 200,
    lookup: Annotated[
        list[int] | None, typer.Option(help="Values of `lookup_tokens`, interleaved; 0 by default.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each.")] = 1,
    copy: Annotated[
        str, typer.Option(help="A model's folder: it repeats given texts, in place of the shapes.")
    ] = "",
    rollouts: Annotated[int, typer.Option(help="With --copy: sequences that decode together.")] = 8,
    temperature: Annotated[float, typer.Option(help="With --copy.")] = 1.0,
) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    typer.echo(
        "| shape | lookup_tokens | tokens | steps | accepted | CPU s | tokens per CPU-second "
        "|\n|---|---|---|---|---|---|---|"
    )
    counts = lookup or [0]
    for shape in ["copy"] if copy else shapes or SHAPES:
        found = (
            copy_text(copy, rollouts, temperature, repeats, counts)
            if copy
            else decode(shape, mean, repeats, counts)
        )
        for count, r in found.items():
            spent = f"{r['accepted']:.2f} | {r['cpu_seconds']:.1f} | {r['tokens_per_cpu_second']:.0f}"
            typer.echo(f"| `{shape}` | {count} | {r['tokens']:,.0f} | {r['steps']:,.0f} | {spent} |")


if __name__ == "__main__":
    typer.run(main)
