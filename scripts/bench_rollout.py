"""Rollouts of a GRPO step: engine `hf` against TRL 1.16.0's and transformers' own generation, or engine
`vllm` against vLLM driven bare.

    python scripts/bench_rollout.py                                     # 8 prompts x 8 completions, one
    336-pixel picture each python scripts/bench_rollout.py --side vllm --side vllm_bare --json

{side: {"cpu_seconds" (or "gpu_seconds"), "peak_extra_mb", "tokens", "ms_per_token"}, "ratio": {side: seconds
of the first side over this one's}}.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from vlrl.bench.cases import CASES
from vlrl.bench.rollout import compare


def main(
    case: Annotated[str, typer.Option(help=f"One of {', '.join(CASES)}.")] = "image_336",
    prompts: Annotated[int, typer.Option(help="Prompts of a step.")] = 8,
    group: Annotated[int, typer.Option(help="Completions per prompt.")] = 8,
    repeats: Annotated[
        int, typer.Option(help="Runs of each side that are counted, after one that is not.")
    ] = 3,
    side: Annotated[
        list[str] | None,
        typer.Option(help="vlrl, transformers, trl, vllm, vllm_bare; the first three by default."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure and print."""
    with redirect_stdout(sys.stderr):  # what libraries print is no part of the figures
        result = compare(case, prompts, group, repeats, side or ())
    if as_json:
        typer.echo(json.dumps(result))
        return
    for name, figures in result.items():
        typer.echo(f"{name}: " + ", ".join(f"{key} {value:,.3f}" for key, value in figures.items()))


if __name__ == "__main__":
    typer.run(main)
