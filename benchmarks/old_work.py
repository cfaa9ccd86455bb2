"""What remembering, kept keys and values and shared passes save: tokens and CPU seconds with and without, on
a whole run with a random text model, one thread.

    python -m benchmarks.old_work               # a Markdown table
    python -m benchmarks.old_work --repeats 7

- replayed rollouts, `aux_tensors.ref_logp.remember`: the reference's log-probs of rollouts that come again;
- accepted drafts, `engine.conversation_tokens` under rollout `spec_rl`: keys and values of the verification;
- old log-probs: the separate pass without gradient is made where the model has dropout; here a layer that is
  never called.

Tokens are those of forward passes: of the reference, of the engine's prefill, of `learn`.
"""

from __future__ import annotations

import gc
import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks import cli
from vlrl.config import load
from vlrl.engine.base import PolicyEngine
from vlrl.plugins.registry import build
from vlrl.plugins.stages import AuxTensor
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.step.loop import learn
from vlrl.trainer.views import StepView
from vlrl.types import Group

MODEL = {"hidden": 256, "layers": 4, "heads": 8, "kv_heads": 4, "intermediate": 704, "rows": 32768}
WORDS = (
    "prompts_per_step=4",
    "group_size=8",
    "sampling.max_tokens=96",
    "sampling.temperature=1.0",
    "optimizer.lr=1e-6",
    "watch.activity_steps=0",
)

Measured = tuple[float, float]  # tokens, CPU seconds


@contextmanager
def opened(method: str, *words: str) -> Iterator[Session]:
    """A run of `methods/METHOD` on sums, with the model `MODEL`."""
    with tempfile.TemporaryDirectory() as folder:
        policy = (
            "policy={name: text, tiny: {"
            + ", ".join(f"{name}: {value}" for name, value in MODEL.items())
            + "}}"
        )
        run = Session(
            Plan.of(
                load(
                    ["base/rl", "tasks/lab_arithmetic", f"methods/{method}"],
                    [policy, f"output={Path(folder) / 'run'}", *WORDS, *words],
                )
            )
        )
        run.open()
        run.enter(0)
        try:
            yield run
        finally:
            run.close()


def sampled(run: Session) -> list[Group]:
    """The groups of a step, with random advantages: a random model's rewards are all equal, and such groups
    are skipped."""
    prompts = [run.prompt_template(row) for row in run.prompt_sampler(run.settings.prompts_per_step)]
    view = StepView.between_steps(run)
    groups = run.rollout(prompts, [run.settings.group_size] * len(prompts), view)
    rng = random.Random(0)
    for rollout in (rollout for group in groups for rollout in group):
        rollout.advantages = [rng.choice((-1.0, 1.0))] * len(rollout)
    return groups


def counted(counters: Counter[str], name: str, work: Callable[[], Any]) -> Measured:
    """What `work` adds to counter `name`, and its CPU seconds."""
    gc.collect()
    before, begun = counters[name], time.process_time()
    work()
    seconds = time.process_time() - begun
    return counters[name] - before, seconds


def replayed(repeats: int) -> dict[str, list[Measured]]:
    """The reference's log-probs of 32 rollouts that were trained on before."""
    found: dict[str, list[Measured]] = {"without": [], "with": []}
    with opened("grpo_kl") as run:
        groups = sampled(run)
        tensor = run.aux_tensors["ref_logp"]
        forgetful = build(AuxTensor, {"name": tensor.name, "remember": 0})
        forgetful.setup(run)
        with run.policy.reference() as reference:
            counters = reference.counters
        for _ in range(repeats + 1):
            for name, one in (("without", forgetful), ("with", tensor)):
                batch = run.batch(
                    [Group(g.prompt, [replace(r, signals={}) for r in g], g.id) for g in groups]
                )
                found[name].append(counted(counters, "tokens", partial(one, run.policy, batch)))
    return {name: values[1:] for name, values in found.items()}


def drafts(repeats: int) -> dict[str, list[Measured]]:
    """A row's second visit under `spec_rl`: tokens that the engine prefills, CPU seconds of verification and
    generation together."""
    found: dict[str, list[Measured]] = {"without": [], "with": []}
    for _ in range(repeats):
        for name, kept in (("without", 0), ("with", 1 << 20)):
            with opened("spec_rl", f"engine={{name: hf, conversation_tokens: {kept}}}") as run:
                prompts = [
                    run.prompt_template(row) for row in run.prompt_sampler(run.settings.prompts_per_step)
                ]
                counts = [run.settings.group_size] * len(prompts)
                view = StepView.between_steps(run)
                run.rollout(prompts, counts, view)
                generator = torch.Generator().manual_seed(0)
                with torch.no_grad():  # the update between two visits
                    for parameter in run.policy.model.parameters():
                        parameter.add_(0.004 * torch.randn(parameter.shape, generator=generator))
                run.policy.advance()
                run.engine.sync(run.policy)
                assert isinstance(run.engine, PolicyEngine)
                found[name].append(
                    counted(
                        run.engine.counters, "prefill_tokens", partial(run.rollout, prompts, counts, view)
                    )
                )
    return found


def old_logp(repeats: int, *words: str) -> dict[str, list[Measured]]:
    """All updates of a step: tokens of all forward passes, CPU seconds of `learn`."""
    found: dict[str, list[Measured]] = {"without": [], "with": []}
    with opened("grpo", *words) as run:
        groups = sampled(run)
        idle = torch.nn.Dropout(0.1)  # is never called: with it in the model the separate pass is made
        for _ in range(repeats + 1):
            for name in ("without", "with"):
                run.policy.model.extra = idle if name == "without" else torch.nn.Identity()
                view = StepView.between_steps(run)
                view.record.groups = groups
                for rollout in (rollout for group in groups for rollout in group):
                    rollout.signals.clear()
                found[name].append(counted(run.policy.counters, "tokens", partial(learn, view)))
    return {name: values[1:] for name, values in found.items()}


CASES: dict[str, Callable[[int], dict[str, list[Measured]]]] = {
    "reference log-probs of replayed rollouts (`remember`)": replayed,
    "accepted drafts of `spec_rl` (`conversation_tokens`)": drafts,
    "old log-probs, `ppo_epochs: 2`": lambda repeats: old_logp(repeats, "ppo_epochs=2"),
    "old log-probs, `num_minibatches: 2`": lambda repeats: old_logp(repeats, "num_minibatches=2"),
    "old log-probs, `num_minibatches: 4`": lambda repeats: old_logp(repeats, "num_minibatches=4"),
}


def measure(case: str, repeats: int) -> dict[str, Measured]:
    """{"without", "with": tokens, which every repeat has in equal number, and the least CPU seconds of the
    repeats}."""
    return {
        name: (values[0][0], min(seconds for _, seconds in values))
        for name, values in CASES[case](repeats).items()
    }


def ratio(without: float, with_: float) -> float:
    """`with_` as a share of `without`; nan for 0."""
    return with_ / without if without else math.nan


def main(
    repeats: Annotated[int, typer.Option(help="Counted runs of each side; the two sides take turns.")] = 3,
) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    typer.echo(
        "| work | tokens without | tokens with | CPU s without | CPU s with | share of the CPU s "
        "|\n|---|---|---|---|---|---|"
    )
    for case in CASES:
        found = measure(case, repeats)
        (tokens, seconds), (fewer, less) = found["without"], found["with"]
        typer.echo(
            f"| {case} | {tokens:,.0f} | {fewer:,.0f} | {seconds:.3f} | {less:.3f} | "
            f"{ratio(seconds, less):.2f} |"
        )


if __name__ == "__main__":
    cli.run(main, __doc__)
