"""How far each part of a step is from the machine's limit: achieved FLOP/s and bytes/s as shares of a plain
matrix product and of a plain copy.

    python scripts/bench_limit.py                       # both shapes, a Markdown table
    python scripts/bench_limit.py small --repeats 9 --json

One thread; CPU seconds; the parts, the product and the copy run in turn, so that other load falls on all of
them.
"""

from __future__ import annotations

import json
from typing import Annotated

import torch
import typer

from vlrl.bench.limit import SHAPES, measure


def main(
    shapes: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(SHAPES)}; all by default.")
    ] = None,
    repeats: Annotated[
        int, typer.Option(help="Runs of each part that are counted, after one that is not.")
    ] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    result = {name: measure(name, repeats) for name in shapes or SHAPES}
    if as_json:
        typer.echo(json.dumps(result))
        return
    typer.echo(
        "| shape | part | CPU s | GFLOP/s | of the product | GB/s | of the copy "
        "|\n|---|---|---|---|---|---|---|"
    )
    for name, rows in result.items():
        for r in rows:
            flops = f"{r['gflops']:.0f} | {r['share_of_product']:.0%}" if r["gflops"] else " | "
            moved = f"{r['gbytes']:.1f} | {r['share_of_copy']:.0%}" if r["gbytes"] else " | "
            typer.echo(f"| `{name}` | {r['part']} | {r['seconds']:.3f} | {flops} | {moved} |")


if __name__ == "__main__":
    typer.run(main)
