"""The table of docs/scaling.md: which layout `vlrl plan` takes from 1 to 1,024 GPUs, and what is slow there.

python -m benchmarks.plan_scaling            # Markdown, no model is loaded
"""

from __future__ import annotations

from dataclasses import replace

import typer

from benchmarks import cli
from vlrl.cli.words import load_words
from vlrl.plan.gpus import gpu
from vlrl.plan.plan import Ask, Trial, best_of, trials
from vlrl.plan.setup import Assumed, Setup, setup

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
BATCH = ("prompts_per_step=512", "loop=one_step_off")
CONFIGS = {
    "Qwen2.5-VL-3B, all weights, one picture": (
        "experiments/vlm_r1",
        *BATCH,
        "engine.sleep=true",
    ),
    "Qwen2.5-VL-3B, LoRA, one picture": (
        "experiments/vlm_r1",
        "tune/lora",
        *BATCH,
        "engine.sleep=true",
    ),
    "Qwen2.5-VL-7B, all weights, one picture": (
        *(
            "base/rl",
            "models/qwen2_5_vl_7b",
            "methods/grpo",
            "tasks/lab_counting",
            *BATCH,
            "engine={name: vllm, sleep: true}",
        ),
        *("sampling={name: plain, max_tokens: 1024}", "group_size=8"),
    ),
    "Qwen2.5-1.5B, all weights, text": ("experiments/text_math_1_5b", *BATCH, "engine.sleep=true"),
}


def slowest(trial: Trial) -> str:
    """The largest part of a step."""
    seconds = trial.seconds
    parts = {
        "sampling": seconds.sampling,
        "training": seconds.training + seconds.scoring,
        "gradients and weights": seconds.communication,
    }
    name = max(
        parts | {"weights to engines": seconds.sync},
        key=lambda part: (parts | {"weights to engines": seconds.sync})[part],
    )
    return f"{name} {(parts | {'weights to engines': seconds.sync})[name] / max(seconds.total, 1e-9):.0%}"


def row(found: Setup, count: int) -> str:
    """One line of the table."""
    best = best_of(trials(found, Ask(gpu("h200"), count, assumed=Assumed())))
    if best is None:
        return f"| {count} | does not fit | | | | | |"
    tokens = found.work.prompts * found.work.group * found.work.completion
    where = f"{best.ranks} + {best.engines}" if best.engines else f"{best.ranks}, shared"
    figures = (
        f"{best.memory.peak / 2**30:.0f} | {best.step_seconds:.1f} | {tokens / best.step_seconds:,.0f} | "
        f"{count * best.step_seconds / 3600:.2f}"
    )
    return f"| {count} | {best.layout} | {where} | {figures} | {slowest(best)} |"


def main() -> None:
    """Print the tables."""
    for name, words in CONFIGS.items():
        found = setup(load_words(list(words)), "", Assumed())
        work = found.work
        typer.echo(
            f"\n**{name}** (512 prompts x {work.group}, prompt {work.prompt} tokens, completion "
            f"{work.completion:.0f})\n"
        )
        typer.echo(
            "| GPUs | layout | trainer + engine | GiB | s a step | sampled tokens/s | GPU hours a step | "
            "largest part |"
        )
        typer.echo("|---|---|---|---|---|---|---|---|")
        for count in COUNTS:
            typer.echo(row(replace(found), count))


if __name__ == "__main__":
    cli.run(main, __doc__)
