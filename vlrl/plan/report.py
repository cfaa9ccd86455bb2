"""A plan as text and as plain values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vlrl.plan.plan import Plan, Trial

GIB = 2**30


def as_values(plan: Plan) -> dict[str, Any]:
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


def trial_values(plan: Plan, trial: Trial) -> dict[str, Any]:
    """One trial as plain values."""
    pictures = plan.setup.work.prompts * plan.setup.work.pictures
    return asdict(trial) | {
        "fits": trial.fits,
        "step_seconds": trial.step_seconds,
        "tokens_per_second": plan.tokens / trial.step_seconds,
        "pictures_per_second": pictures / trial.step_seconds,
        "cost_per_1000_steps": plan.price(trial),
    }


def as_lines(plan: Plan) -> list[str]:
    """The report."""
    shape, work, ask = plan.setup.shape(), plan.setup.work, plan.ask
    parts = ", ".join(f"{part} {count / 1e6:.0f}M" for part, count in shape.parts.items() if part != "head")
    adapter = f", adapters of rank {shape.rank}" if shape.rank else ""
    lines = [
        f"model        {plan.setup.family.model or 'tiny'}: {shape.parameters / 1e9:.3f}B parameters ({parts}); trained {shape.trained / 1e6:.1f}M{adapter}",
        f"step         {work.prompts} prompts x {work.group} completions; prompt {work.prompt} tokens ({work.media_tokens} of {work.pictures} pictures), "
        f"completion {work.completion:.0f} of at most {work.max_completion}; {work.num_minibatches * work.epochs} optimizer steps",
        f"longest      micro-batch {plan.micro.rows} x {plan.micro.length} tokens, {plan.micro.scored} scored, {plan.micro.patches} patches",
        f"FLOPs        {plan.flops.total:.2e} a step: prefill {plan.flops.prefill:.1e}, decode {plan.flops.decode:.1e}, "
        f"passes before the loss {plan.flops.scoring:.1e}, training {plan.flops.training:.1e}",
        f"devices      {ask.count} x {ask.gpu.name} ({ask.gpu.usable / GIB:.0f} GiB usable); assumed: {ask.speed.training:.0%} of the peak in training, "
        f"{ask.speed.prefill:.0%} in prefill, {ask.speed.decoding:.0%} of the bandwidth in decoding",
        "",
        "layout  ranks engines | GiB: weights grads  optim buffers  ref   acts  logits  KV  engine |  peak  in               | s: sample score  train  comm | step s",
    ]  # fmt: skip
    lines += [_line(trial) for trial in plan.trials]
    lines.append("")
    if plan.chosen:
        lines += _chosen(plan, plan.chosen, "fastest that fits")
    elif plan.changed:
        lines.append(f"nothing fits; the smallest change that fits: {' '.join(plan.change)}")
        lines += [_line(plan.changed), *_chosen(plan, plan.changed, "then")]
    else:
        lines.append("nothing fits, and no change that is known here makes it fit: use more or larger GPUs, or a smaller model")
    return lines


def _line(trial: Trial) -> str:
    memory, seconds = trial.memory, trial.seconds
    state, acts = memory.state, memory.activations
    kinds = (
        state.weights,
        state.gradients,
        state.optimizer,
        state.buffers,
        memory.reference,
        acts.kept,
        acts.total - acts.kept,
        memory.kv_cache,
        memory.engine,
    )
    numbers = " ".join(f"{value / GIB:6.1f}" for value in kinds)
    verdict = "" if trial.fits else "  does not fit"
    return (
        f"{trial.layout:7} {trial.ranks:5} {trial.engines or 'same':>7} |      {numbers} | {memory.peak / GIB:6.1f} {memory.when:15} | "
        f"{seconds.sampling:9.1f} {seconds.scoring:5.1f} {seconds.training:6.1f} {seconds.communication + seconds.sync:5.1f} | {trial.step_seconds:6.1f}{verdict}"
    )


def _chosen(plan: Plan, trial: Trial, what: str) -> list[str]:
    values = trial_values(plan, trial)
    place = f"{trial.engines} GPUs for engines" if trial.engines else "engine on the trainer's GPUs"
    lines = [
        f"{what}: {trial.layout} on {trial.ranks} ranks, {place}: {trial.step_seconds:.1f} s a step, {values['tokens_per_second']:.0f} sampled tokens and "
        f"{values['pictures_per_second']:.2f} pictures a second, {trial.step_seconds * 1000 / 3600:.1f} hours for 1,000 steps"
    ]
    if plan.ask.price:
        lines.append(f"cost of 1,000 steps at {plan.ask.price:g} per GPU and hour: {values['cost_per_1000_steps']:.0f}")
    return lines
