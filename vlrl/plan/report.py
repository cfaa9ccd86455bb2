"""A plan as text and as plain values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vlrl.pages.kit import render
from vlrl.plan.memory import MicroBatch
from vlrl.plan.plan import CostPlan, Trial

GIB = 2**30
SECONDS = ("sampling", "scoring", "training", "communication")  # parts of a step in the page


def as_values(plan: CostPlan) -> dict[str, Any]:
    """Everything as plain values: bytes, FLOPs, seconds."""
    shape, work = plan.setup.shape(), plan.setup.work
    return {
        "gpu": asdict(plan.ask.gpu) | {"usable": plan.ask.gpu.usable},
        "count": plan.ask.count,
        "assumed": asdict(plan.ask.assumed) | asdict(plan.ask.speed),
        "parameters": shape.parameters,
        "parts": dict(shape.parts),
        "trained": shape.trained,
        "workload": asdict(work),
        "longest_micro_batch": asdict(plan.micro),
        "flops": asdict(plan.flops) | {"total": plan.flops.total},
        "trials": [trial_values(plan, trial) for trial in plan.trials],
        "chosen": trial_values(plan, plan.chosen) if plan.chosen else None,
        "change": list(plan.change),
        "changed": trial_values(plan, plan.changed) if plan.changed else None,
    }


def trial_values(plan: CostPlan, trial: Trial) -> dict[str, Any]:
    """One trial as plain values."""
    pictures = plan.setup.work.prompts * plan.setup.work.pictures
    return asdict(trial) | {
        "fits": trial.fits,
        "step_seconds": trial.step_seconds,
        "tokens_per_second": plan.tokens / trial.step_seconds,
        "pictures_per_second": pictures / trial.step_seconds,
        "cost_per_1000_steps": plan.price(trial),
    }


def as_lines(plan: CostPlan) -> list[str]:
    """The report."""
    shape, work, ask = plan.setup.shape(), plan.setup.work, plan.ask
    flops, micro, speed = plan.flops, plan.micro, ask.speed
    parts = ", ".join(f"{part} {count / 1e6:.0f}M" for part, count in shape.parts.items() if part != "head")
    trained = f"trained {shape.trained / 1e6:.1f}M" + (
        f", adapters of rank {shape.rank}" if shape.rank else ""
    )
    lines = [
        (
            f"model    {plan.setup.family.model or 'tiny'}: {shape.parameters / 1e9:.3f}B parameters "
            f"({parts}); {trained}"
        ),
        f"step     {work.prompts} prompts x {work.group} completions, {work.num_minibatches * work.epochs} "
        f"optimizer steps; prompt {work.prompt} "
        f"tokens ({work.media_tokens} of {work.pictures} pictures), completion {work.completion:.0f} of at "
        f"most {work.max_completion}",
        (
            f"longest  micro-batch {micro.rows} x {micro.length} tokens, {micro.scored} scored, "
            f"{micro.patches} patches" + _slices(micro)
        ),
        f"FLOPs    {flops.total:.2e} a step: prefill {flops.prefill:.1e}, decode {flops.decode:.1e}, "
        f"before the loss {flops.scoring:.1e}, "
        f"training {flops.training:.1e}",
        f"devices  {ask.count} x {ask.gpu.name} ({ask.gpu.usable / GIB:.0f} GiB usable); assumed: "
        f"{speed.training:.0%} of the peak in training, "
        f"{speed.prefill:.0%} in prefill, {speed.decoding:.0%} of the bandwidth in decoding",
        "",
        (
            "GiB:  ranks engines weights  grads  optim buffer    ref   acts logits     KV engine |  peak "
            f"in{'':13}| sample  score  train   comm | step"
        ),
    ]
    lines += [_line(trial) for trial in plan.trials]
    lines.append("")
    if plan.chosen:
        lines += _chosen(plan, plan.chosen, "fastest that fits")
    elif plan.changed:
        lines.append(f"nothing fits; the smallest change that fits: {' '.join(plan.change)}")
        lines += [_line(plan.changed), *_chosen(plan, plan.changed, "then")]
    else:
        lines.append(
            "nothing fits, and no change that is known here makes it fit: use more or larger GPUs, or a "
            "smaller model"
        )
    return lines


def _slices(micro: MicroBatch) -> str:
    if micro.sequence == 1:
        return ""
    return f"; {micro.sequence} ranks hold {micro.own_tokens // micro.rows} tokens of each row"


def as_page(plan: CostPlan, title: str) -> str:
    """The report as an HTML page: what to take, and every layout with its memory and times."""
    head = ["layout", "ranks", "engine GPUs", "GiB at the peak", "when", "fits", "s a step", *SECONDS]
    trials = [*plan.trials, *([plan.changed] if plan.changed else [])]
    rows = []
    for trial in trials:
        seconds = trial.seconds
        times = (seconds.sampling, seconds.scoring, seconds.training, seconds.communication + seconds.sync)
        peak = f"{trial.memory.peak / GIB:.1f}"
        where = [trial.layout, str(trial.ranks), str(trial.engines or "the same"), peak, trial.memory.when]
        fits = "yes" if trial.fits else "no"
        rows.append([*where, fits, f"{trial.step_seconds:.1f}", *(f"{value:.1f}" for value in times)])
    lines = as_lines(plan)
    story = [line for line in lines[lines.index("", lines.index("") + 1) + 1 :] if line[:3].strip()]
    sections = [
        {"heading": "Layouts", "table": [head, *rows]},
        {"heading": "In full", "text": "\n".join(lines)},
    ]
    return render("sections", title, "vlrl plan", story=story, sections=sections)


def _line(trial: Trial) -> str:
    memory, seconds = trial.memory, trial.seconds
    state, acts = memory.state, memory.activations
    held = (state.weights, state.gradients, state.optimizer, state.buffers, memory.reference)
    kinds = (*held, acts.kept, acts.total - acts.kept, memory.kv_cache, memory.engine)
    parts = (seconds.sampling, seconds.scoring, seconds.training, seconds.communication + seconds.sync)
    numbers = " ".join(f"{value / GIB:6.1f}" for value in kinds)
    times = " ".join(f"{value:6.1f}" for value in parts)
    verdict = "" if trial.fits else "  does not fit"
    where = f"{trial.layout:6} {trial.ranks:4} {trial.engines or 'same':>7}"
    return (
        f"{where}  {numbers} | {memory.peak / GIB:5.1f} {memory.when:14} | {times} | "
        f"{trial.step_seconds:6.1f}{verdict}"
    )


def _chosen(plan: CostPlan, trial: Trial, what: str) -> list[str]:
    values = trial_values(plan, trial)
    place = f"{trial.engines} GPUs for engines" if trial.engines else "engine on the trainer's GPUs"
    rates = (
        f"{values['tokens_per_second']:.0f} sampled tokens and {values['pictures_per_second']:.2f} "
        "pictures a second"
    )
    hours = trial.step_seconds * 1000 / 3600
    lines = [
        (
            f"{what}: {trial.layout} on {trial.ranks} ranks, {place}: {trial.step_seconds:.1f} s a step, "
            f"{rates}, {hours:.1f} hours for 1,000 steps"
        )
    ]
    if plan.ask.price:
        lines.append(
            f"cost of 1,000 steps at {plan.ask.price:g} per GPU and hour: {values['cost_per_1000_steps']:.0f}"
        )
    return lines
