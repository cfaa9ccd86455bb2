"""Every model of configs/models at the true shape of its release with few layers: packed log-probs against
plain ones, gradients, LoRA targets.

python scripts/true_shapes.py                        # all, one process each; a 7B needs 10 GB
python scripts/true_shapes.py qwen3_vl_4b --layers 1
python scripts/true_shapes.py --vllm smollm2_135m    # vLLM loads it, and new weights of the policy reach all
of its tensors
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from vlrl.bench.true_shapes import MODELS, check
from vlrl.bench.vllm_shapes import check_vllm

DIFFERENCE = "largest difference of a log-prob"
HEAD = (
    f"| model | parameters, few layers | prompt tokens | {DIFFERENCE} | gradient norm | LoRA layers, whole "
    "model |"
)
VLLM_HEAD = (
    f"| model | parameters, few layers | {DIFFERENCE}, loaded | after an update | vLLM's tensors | of them "
    "not updated | CPU-seconds |"
)


def main(
    models: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(MODELS)}; all by default.")
    ] = None,
    layers: Annotated[int, typer.Option(help="Layers of the language model and of the tower.")] = 2,
    vllm: Annotated[
        bool,
        typer.Option(
            "--vllm", help="Check vLLM's loading and weight updates instead; a second copy of the weights."
        ),
    ] = False,
    worker: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Check and print a table."""
    if worker:
        for model in models or MODELS:
            typer.echo(
                json.dumps(asdict(check_vllm(model, layers=layers) if vllm else check(model, layers=layers)))
            )
        return
    head, row = (VLLM_HEAD, vllm_row) if vllm else (HEAD, plain_row)
    typer.echo(f"{head}\n{'|---' * head.count(' | ')}|---|")
    failed = False
    for model in models or MODELS:
        command = [
            sys.executable,
            __file__,
            model,
            "--worker",
            "--layers",
            str(layers),
            *(["--vllm"] if vllm else []),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            failed = True
            typer.echo(f"| `{model}` | failed: {fault(done)} {'| ' * (head.count(' | ') - 1)}|")
            continue
        text, wrong = row(json.loads(done.stdout.strip().splitlines()[-1]))
        failed |= wrong
        typer.echo(f"| `{model}` | {text} |")
    raise typer.Exit(1 if failed else 0)


def fault(done: subprocess.CompletedProcess[str]) -> str:
    """Why a process failed: the signal that ended it (9: out of memory), or its last line that names an
    error."""
    if done.returncode < 0:
        return f"ended by signal {-done.returncode}"
    lines = done.stderr.strip().splitlines() or ["(no output)"]
    return next((line for line in reversed(lines) if "Error:" in line), lines[-1])


def plain_row(r: dict[str, Any]) -> tuple[str, bool]:
    """(cells of a `Checked`, whether it failed)."""
    wrong = r["difference"] > 1e-4 or not 0 < r["gradient"] < float("inf")
    figures = (
        f"{r['parameters'] / 1e6:.0f}M | {r['tokens']} | "
        f"{r['difference']:.1e}{' (too large)' if wrong else ''} | {r['gradient']:.3g}"
    )
    return f"{figures} | {r['lora_layers']}", wrong


def vllm_row(r: dict[str, Any]) -> tuple[str, bool]:
    """(cells of a `VLLMChecked`, whether it failed)."""
    cells, wrong = [], bool(r["unmoved"])
    for when in ("loaded", "updated"):
        prompt, worst = max(r[when].items(), key=lambda item: item[1])
        cells.append(f"{worst:.1e}" + (f" (too large: prompt with {prompt})" if worst > 1e-4 else ""))
        wrong |= worst > 1e-4
    unmoved = ", ".join(f"{name} ({share:.1%} of its rows)" for name, share in r["unmoved"].items()) or "none"
    return (
        (
            f"{r['parameters'] / 1e6:.0f}M | {cells[0]} | {cells[1]} | {r['tensors']} | {unmoved} | "
            f"{r['seconds']:.0f}"
        ),
        wrong,
    )


if __name__ == "__main__":
    typer.run(main)
