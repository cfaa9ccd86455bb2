"""The training half of a GRPO step: vlrl against TRL 1.16.0 on the same weights, prompts, pictures and
completions.

    python scripts/bench_step.py                        # all cases, a table
    python scripts/bench_step.py image_336 --json       # {case: {"vlrl": ..., "trl": ..., "ratio": ...,
    "loss_diff", "grad_rel_diff"}}

Needs `pip install trl==1.16.0`. With a GPU, times are CUDA-event times and memory is the GPU's.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from vlrl.bench.cases import CASES
from vlrl.bench.step import compare


def main(
    cases: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(CASES)}; all by default.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Steps of each side that are counted.")] = 1,
    checkpointing: Annotated[bool, typer.Option(help="Recompute activations, on both sides.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure and print."""
    chosen = cases or list(CASES)
    if as_json:
        with redirect_stdout(sys.stderr):  # what libraries print is no part of the figures
            result = compare(chosen, repeats, checkpointing)
        typer.echo(json.dumps(result))
        return
    typer.echo(
        "case               | seconds: vlrl, trl, ratio | peak MB: vlrl, trl | loss diff, gradient diff | "
        "decoded | head rows"
    )
    for name in chosen:
        r = compare([name], repeats, checkpointing)[name]
        ours, theirs = r["vlrl"], r["trl"]
        clock = next(key for key in ours if key.endswith("seconds"))
        typer.echo(
            f"{name:18} | {ours[clock]:.2f}, {theirs[clock]:.2f}, {r['ratio'][clock]:.2f} | "
            f"{ours['peak_extra_mb']:.0f}, "
            f"{theirs['peak_extra_mb']:.0f} | {r['loss_diff']:.1e}, {r['grad_rel_diff']:.1e} | "
            f"{ours['decoded']}, {theirs['decoded']} | "
            f"{ours['head_rows']}, {theirs['head_rows']}"
        )


if __name__ == "__main__":
    typer.run(main)
