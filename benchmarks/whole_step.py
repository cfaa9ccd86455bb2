"""One GRPO step of a released model's whole shape, random weights, on a CPU: peak memory against what `vlrl
plan` predicts, and CPU seconds by part.

    python -m benchmarks.whole_step /tmp/3b    # Qwen2.5-VL-3B, bfloat16, LoRA r 16: 8 GB disk, 12 memory
    python -m benchmarks.whole_step /tmp/3b trainable=null steps=2 --model qwen2_vl_2b

The model is written to the folder once and loaded from there, as a release would be. A step is: 2 prompts
with a picture of 84 pixels, 2 rollouts of 8 tokens each, sampled by engine `hf`; a reward; forward and
backward; AdamW. Random weights answer no question, so the reward is the share of letters in the text. The
tokenizer is that of tiny models; embeddings and output layer have all rows of the release.
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import typer

from benchmarks import cli
from benchmarks.memory import longest_group, open_run, peak_bytes
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout

STEP = [
    "group_size=2", "prompts_per_step=2", "sampling.max_tokens=8", "micro_batch_tokens=32",
    "max_prompt_tokens=256", "threads=1",
    "watch.activity_steps=0", "rewards={letters: {name: letters, weight: 1.0}}", "outcome=letters",
    "data.train.counting.count=8",
]  # fmt: skip
SHOWN = ("reward/total", "length/mean", "loss", "grad_norm", "engine/logp_diff")


@register("letters")
@dataclass(frozen=True, kw_only=True)
class Letters(Reward):
    """Share of letters in the response, from 0 to 1 (0 for an empty one): a number that differs between
    random texts."""

    def __call__(self, rollout: Rollout) -> float:
        return sum(c.isalpha() for c in rollout.text) / max(1, len(rollout.text))


@dataclass
class Clock:
    """CPU seconds of this process by part; a part inside another counts for both."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the CPU seconds inside to `name`."""
        begun = time.process_time()
        try:
            yield
        finally:
            self.seconds[name] += time.process_time() - begun

    def timing(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, timed."""

        def call(*args: Any, **options: Any) -> Any:
            with self.timed(name):
                return function(*args, **options)

        return call


def opened(words: list[str], clock: Clock) -> Any:
    """The run of a config's words, ready for its first step, whose parts `clock` will time."""
    from vlrl.trainer.step import loop
    from vlrl.trainer.step.step import Step

    with clock.timed("load"):
        run = open_run(words)
    patch.object(Step, "timed", lambda self, name: clock.timed(name)).start()  # CPU seconds, not wall ones
    for name in ("backward", "optimizer_step"):
        vars(loop)[name] = clock.timing(name, vars(loop)[name])
    return run


def make_steps(run: Any, clock: Clock, steps: int) -> Any:
    """The steps of a run; returns the last one."""
    from vlrl.trainer.step.loop import train_step

    for _ in range(steps):
        with clock.timed("step"):
            step = train_step(run)
        shown = {name: round(step.metrics[name], 6) for name in SHOWN if name in step.metrics}
        typer.echo(shown, err=True)
    return step


def weight_bytes(run: Any) -> int:
    """Bytes of all weights and buffers."""
    return sum(
        t.numel() * t.element_size() for t in (*run.policy.model.parameters(), *run.policy.model.buffers())
    )


def predicted(run: Any, words: list[str]) -> Any:
    """`vlrl plan`'s memory for the micro-batches that were trained on."""
    from vlrl.cli.words import load_words
    from vlrl.plan.layouts import LAYOUTS
    from vlrl.plan.memory import MicroBatch, rank_memory
    from vlrl.plan.setup import plugins
    from vlrl.plan.shape import shape_of

    family, trainable, _ = plugins(load_words(words).tree)
    shape = shape_of(family, trainable)
    tokens = sum(len(run.policy.encode(group.prompt)) + sum(map(len, group)) for group in run.groups)
    return rank_memory(
        shape, MicroBatch(**longest_group(run, run.groups)), LAYOUTS["single"], 1, family.checkpointing,
        family.chunk, optimizer="adamw",
        micro_batches=len(run.groups), kv_cache=shape.kv_per_token * tokens, on_gpu=False,
    )  # fmt: skip


def main(
    folder: Annotated[Path, typer.Argument(help="Where the model goes, or is.")],
    words: Annotated[list[str] | None, typer.Argument(help="Further overrides of the run.")] = None,
    model: Annotated[str, typer.Option(help="A config of configs/models.")] = "qwen2_5_vl_3b",
    layers: Annotated[int, typer.Option(help="Layers of the language model and of the tower; 0: all.")] = 0,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 1,
    profile: Annotated[
        bool,
        typer.Option(help="Count the bytes of tensors; without it, CPU seconds are free of the profiler's."),
    ] = True,
) -> None:
    """Make the step and print what it took."""
    cli.known("model", [model], cli.configs("models"))
    from benchmarks.true_shapes import save_release

    save_release(model, folder, layers, layers)
    base = [
        "base/rl",
        "tasks/lab_counting",
        "methods/grpo",
        f"models/{model}",
        "tune/lora",
        f"policy.model={folder}",
        f"output={folder / 'run'}",
    ]
    clock, config = Clock(), [*base, *STEP, *(words or [])]
    run = opened(config, clock)
    loaded, held = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        weight_bytes(run),
    )  # loading is not profiled: it frees in threads
    step, grown = (
        peak_bytes(lambda: make_steps(run, clock, steps)) if profile else (make_steps(run, clock, steps), 0)
    )
    plan, micro, spent = predicted(run, config), longest_group(run, step.groups), clock.seconds
    weights = list(run.policy.model.parameters())
    trained = sum(p.numel() for p in weights if p.requires_grad)
    typer.echo(f"parameters {sum(p.numel() for p in weights):,}, trained {trained:,}; longest group {micro}")
    spent["forward"] = spent["learn"] - spent["backward"] - spent["optimizer_step"]
    parts = ("load", "sample", "score", "forward", "backward", "optimizer_step", "step")
    typer.echo("CPU seconds: " + ", ".join(f"{name} {spent[name]:.1f}" for name in parts))
    typer.echo(
        f"weights {held / 1e9:.2f} GB, tensors at their highest {(held + grown) / 1e9:.2f} GB; `vlrl plan` "
        f"{plan.peak / 1e9:.2f} GB, {plan}"
    )
    typer.echo(
        f"highest resident memory {loaded:.2f} GB after loading, "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB in all"
    )


if __name__ == "__main__":
    cli.run(main, __doc__)
