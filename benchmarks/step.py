"""The training half of a GRPO step: vlrl against TRL 1.16.0 on the same weights, prompts, pictures and
completions, interleaved.

    python -m benchmarks.step                        # all cases, a table
    python -m benchmarks.step image_336 --json

JSON: {case: {"vlrl": ..., "trl": ..., "ratio": ..., "loss_diff", "grad_rel_diff"}}. Needs
`pip install trl==1.16.0`. With a GPU, times are CUDA-event times and memory is the GPU's.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks import cli
from benchmarks.cases import CASES, Case, make_groups
from benchmarks.meter import measure
from benchmarks.ours import Ours
from benchmarks.theirs import Theirs
from vlrl.plugins.registry import ConfigError, build, suggest
from vlrl.policy import Family, Policy

SIZES = {
    "hidden": 256, "layers": 4, "heads": 8, "kv_heads": 4, "intermediate": 704, "vision_hidden": 256,
    "vision_layers": 4, "vision_heads": 8,
    "rows": 32768,
}  # fmt: skip

MEGAPIXEL = Case(pixels=1000, images=1, mean=180, longest=256, prompts=4)


def compare(names: Sequence[str], repeats: int = 3, checkpointing: bool = False) -> dict[str, Any]:
    """{case: {"vlrl", "trl", "ratio", "loss_diff", "grad_rel_diff"}}. Raises ConfigError for an unknown
    case."""
    for name in names:
        if name not in CASES:
            raise ConfigError(f"no case named {name!r}.{suggest(name, CASES)}")
    return {name: compare_one(CASES[name], repeats, checkpointing) for name in names}


def compare_one(case: Case, repeats: int, checkpointing: bool) -> dict[str, Any]:
    """Medians over `repeats` interleaved steps, after one of each that is not counted."""
    family = build(
        Family,
        {"name": "qwen2_5_vl" if case.images else "text", "tiny": SIZES, "checkpointing": checkpointing},
    )
    policy = Policy(family, device="cuda" if torch.cuda.is_available() else "cpu")
    allow_all_tokens(policy)
    policy.params.forbidden_ids = (
        policy.params.net.forbidden_ids
    ) = ()  # TRL gives ids beyond the tokenizer a probability: equal losses need the same
    groups = make_groups(case, 200)
    with tempfile.TemporaryDirectory() as folder:
        policy.save(folder)
        prompt_ids = [policy.encode(group.prompt).ids for group in groups]
        sides: dict[str, Any] = {
            "vlrl": Ours(policy, groups),
            "trl": Theirs(Path(folder), groups, prompt_ids, policy.eos_id, checkpointing),
        }
    models = {"vlrl": policy.model, "trl": sides["trl"].model}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    losses = {}
    for _ in range(repeats + 1):
        for name, side in sides.items():
            models[name].zero_grad(set_to_none=True)
            losses[name], used = measure(side.step)
            runs[name].append(used)
    gradients = {name: gradient(model) for name, model in models.items()}
    middle = {
        name: {key: statistics.median(r[key] for r in used[1:]) for key in used[0]}
        for name, used in runs.items()
    }
    clock = next(key for key in middle["trl"] if key.endswith("seconds"))
    return {
        **{name: {**middle[name], **sides[name].counters()} for name in sides},
        "ratio": {
            clock: middle["trl"][clock] / middle["vlrl"][clock],
            "peak_extra_memory": middle["vlrl"]["peak_extra_mb"] / max(middle["trl"]["peak_extra_mb"], 1e-9),
        },
        "loss_diff": abs(losses["vlrl"] - losses["trl"]),
        "grad_rel_diff": float((gradients["vlrl"] - gradients["trl"]).norm() / gradients["trl"].norm()),
    }


def allow_all_tokens(policy: Policy) -> None:
    """Give every row of the head a probability, as TRL does: otherwise the two sides' gradients are of
    different softmaxes."""
    policy.params.forbidden_ids = policy.params.net.forbidden_ids = ()


def compare_policy(policy: Policy, case: Case, repeats: int = 3) -> dict[str, Any]:
    """As `compare_one` for a given policy, whose precision and checkpointing both sides take. The sides run
    one after the other, so that only one of them holds gradients and activations; the policy's weights are
    gone afterwards."""
    groups, family = make_groups(case, 200), policy.family
    bf16 = family.compute_dtype == torch.bfloat16
    allow_all_tokens(policy)
    found: dict[str, Any] = {}
    gradients = {}
    with tempfile.TemporaryDirectory() as folder:
        policy.save(folder)
        prompt_ids, eos_id = [policy.encode(group.prompt).ids for group in groups], policy.eos_id
        for name in ("vlrl", "trl"):
            side: Any = (
                Ours(policy, groups)
                if name == "vlrl"
                else Theirs(Path(folder), groups, prompt_ids, eos_id, family.checkpointing, bf16)
            )
            model = policy.model if name == "vlrl" else side.model
            used, loss = [], 0.0
            for _ in range(repeats + 1):
                model.zero_grad(set_to_none=True)
                loss, one = measure(side.step)
                used.append(one)
            found[name] = {
                **{key: statistics.median(r[key] for r in used[1:]) for key in used[0]},
                **side.counters(),
                "loss": loss,
            }
            gradients[name] = gradient(model)
            model.to("meta")
            del side, model
    clock = next(key for key in found["trl"] if key.endswith("seconds"))
    found["ratio"] = {clock: found["trl"][clock] / found["vlrl"][clock]}
    found["loss_diff"] = abs(found["vlrl"]["loss"] - found["trl"]["loss"])
    found["grad_rel_diff"] = float((gradients["vlrl"] - gradients["trl"]).norm() / gradients["trl"].norm())
    return found


def gradient(model: torch.nn.Module) -> torch.Tensor:
    """All gradients, as one vector."""
    return torch.cat(
        [
            (p.grad if p.grad is not None else torch.zeros_like(p)).flatten().float().cpu()
            for _, p in sorted(model.named_parameters())
        ]
    )


def main(
    cases: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(CASES)}; all by default.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Steps of each side that are counted.")] = 1,
    checkpointing: Annotated[bool, typer.Option(help="Recompute activations, on both sides.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure and print."""
    cli.known("case", cases or (), CASES)
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
    cli.run(main, __doc__)
