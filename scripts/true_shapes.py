"""Every model of configs/models at the true shape of its release with few layers: packed log-probs against plain ones, gradients, LoRA targets.

python scripts/true_shapes.py                        # all, one process each; a 7B needs 10 GB
python scripts/true_shapes.py qwen3_vl_4b --layers 1
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from vlrl.bench.true_shapes import MODELS, check


def main(
    models: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(MODELS)}; all by default.")] = None,
    layers: Annotated[int, typer.Option(help="Layers of the language model and of the tower.")] = 2,
    worker: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Check and print a table."""
    if worker:
        for model in models or MODELS:
            typer.echo(json.dumps(asdict(check(model, layers=layers))))
        return
    typer.echo("| model | parameters, few layers | prompt tokens | largest difference of a log-prob | gradient norm | LoRA layers, whole model |")
    typer.echo("|---|---|---|---|---|---|")
    failed = False
    for model in models or MODELS:
        command = [sys.executable, __file__, model, "--worker", "--layers", str(layers)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            failed = True
            typer.echo(f"| `{model}` | failed: {done.stderr.strip().splitlines()[-1]} | | | | |")
            continue
        r = json.loads(done.stdout.strip().splitlines()[-1])
        wrong = r["difference"] > 1e-4 or not 0 < r["gradient"] < float("inf")
        failed |= wrong
        figures = f"{r['parameters'] / 1e6:.0f}M | {r['tokens']} | {r['difference']:.1e}{' (too large)' if wrong else ''} | {r['gradient']:.3g}"
        typer.echo(f"| `{model}` | {figures} | {r['lora_layers']} |")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
