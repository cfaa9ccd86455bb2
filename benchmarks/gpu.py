"""Everything that needs a CUDA device, in one command: correctness, and the training half of a GRPO step
against TRL at the shape of a 3B model.

    python -m benchmarks.gpu                       # all checks, then the table (80 GB; --layers 8 for less)
    python -m benchmarks.gpu --checks              # the checks alone: `make test-gpu GPU_OPTIONS=--checks`
    python -m benchmarks.gpu packed flex_attention # some of them

Each check of benchmarks/gpu_checks.py is a process of its own. One whose needs are missing (a second GPU,
bitsandbytes, vLLM) is named as left out. The table needs `pip install trl==1.16.0`: Qwen2.5-VL-3B's shape
with random weights, float32 master weights, bfloat16 products, checkpointing, all weights trained, 4 prompts
with a picture of one megapixel, 8 completions each; CUDA-event times and the GPU's memory. Ends with status 1
if a check does not hold, 2 without a CUDA device.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict
from typing import Annotated, Any

import torch
import typer

from benchmarks import cli
from benchmarks.gpu_checks import CHECKS, Missing

MODEL = "qwen2_5_vl_3b"


def without_cuda() -> str:
    """Why there is no CUDA device, in one line; "" if there is one."""
    if torch.cuda.is_available():
        return ""
    build = (
        "this torch was built without CUDA"
        if torch.version.cuda is None
        else "torch sees no GPU (nvidia-smi -L, CUDA_VISIBLE_DEVICES)"
    )
    return f"benchmarks.gpu: needs a CUDA device; {build} (torch {torch.__version__})"


def run(words: list[str]) -> dict[str, Any]:
    """The JSON that this script prints for `words` in a process of its own; {"error": last line} if it
    fails."""
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu", *words], capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def work(name: str, layers: int, repeats: int) -> dict[str, Any]:
    """One check, or the comparison ("step")."""
    if name != "step":
        try:
            found = CHECKS[name]()
        except Missing as missing:
            return {"missing": str(missing)}
        return {**asdict(found), "holds": found.holds}
    from benchmarks.step import MEGAPIXEL, compare_policy
    from benchmarks.true_shapes import family_of, random_release

    family = family_of(MODEL, dtype="bfloat16", checkpointing=True)
    policy = random_release(family, layers, layers, device="cuda")
    policy.model.requires_grad_(True)
    policy.params.upcast_trainable()
    return compare_policy(policy, MEGAPIXEL, repeats)


def step_table(result: dict[str, Any]) -> None:
    """Print the comparison."""
    if "error" in result:
        typer.echo(f"the comparison with TRL failed: {result['error']}")
        return
    ours, theirs = result["vlrl"], result["trl"]
    clock = next(key for key in ours if key.endswith("seconds"))
    typer.echo(
        "\n| side | seconds a step | extra memory MB | pictures decoded | patches | LM-head rows "
        "|\n|---|---|---|---|---|---|"
    )
    for name, side in (("vlrl", ours), ("TRL", theirs)):
        numbers = (
            f"{side[clock]:.2f} | {side['peak_extra_mb']:.0f} | {side['decoded']} | {side['patches']} | "
            f"{side['head_rows']}"
        )
        typer.echo(f"| {name} | {numbers} |")
    exact = (
        f"losses differ by {result['loss_diff']:.1e}, gradients by {result['grad_rel_diff']:.1e} (relative)"
    )
    typer.echo(f"\nTRL / vlrl {result['ratio'][clock]:.1f}; {exact}")


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(CHECKS)}; all by default.")
    ] = None,
    checks: Annotated[bool, typer.Option("--checks", help="Leave the comparison with TRL out.")] = False,
    layers: Annotated[
        int, typer.Option(help="Layers of the 3B model and of its tower in the comparison; 0 is all.")
    ] = 0,
    repeats: Annotated[int, typer.Option(help="Steps of each side that are counted.")] = 3,
    worker: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Check, measure and print."""
    cli.known("check", names or (), (*CHECKS, "step"))
    if reason := without_cuda():
        typer.echo(reason, err=True)
        raise typer.Exit(2)
    if worker:
        typer.echo(json.dumps(work((names or [""])[0], layers, repeats)))
        return
    typer.echo(
        f"{torch.cuda.get_device_name()}, {torch.cuda.device_count()} of them, torch {torch.__version__}\n"
    )
    typer.echo("| check | figure | bound | | what |\n|---|---|---|---|---|")
    failed = False
    for name in names or list(CHECKS):
        r = run([name, "--worker"])
        failed |= "error" in r or not r.get("holds", True)
        if "missing" in r:
            typer.echo(f"| `{name}` | | | left out | needs {r['missing']} |")
        elif "error" in r:
            typer.echo(f"| `{name}` | | | failed | {r['error']} |")
        else:
            typer.echo(
                f"| `{name}` | {r['figure']:.2g} | {r['bound']:.2g} | "
                f"{'holds' if r['holds'] else 'does not hold'} | {r['text']} |"
            )
    if not checks and not names:
        if importlib.util.find_spec("trl") is None:
            typer.echo("\nthe comparison with TRL is left out: pip install trl==1.16.0")
        else:
            step_table(run(["step", "--worker", "--layers", str(layers), "--repeats", str(repeats)]))
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    cli.run(main, __doc__)
