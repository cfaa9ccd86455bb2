"""The plan of a config on given devices: memory per rank under each layout, FLOPs, seconds, cost, and the
smallest change that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from vlrl.config import Config, load
from vlrl.plan.compute import StepFlops, cost
from vlrl.plan.gpus import GPU
from vlrl.plan.layouts import LAYOUTS
from vlrl.plan.memory import Memory, MicroBatch, rank_memory
from vlrl.plan.setup import Assumed, Setup, setup
from vlrl.plan.step import Speed, StepSeconds, sampling_seconds, step_flops, trainer_seconds
from vlrl.plan.workload import longest_micro_batch, micro_batches
from vlrl.plugins.registry import ConfigError
from vlrl.services.lazy import torch

ENGINE_SHARE = (
    0.85  # of a GPU's memory: `engine.memory`'s default, for engines that have a device of their own
)


@dataclass(frozen=True)
class Ask:
    """What is asked: `count` GPUs, their price in an hour, the layout ("": the fastest that fits), and what
    the config does not say."""

    gpu: GPU
    count: int = 8
    price: float = 0.0
    sharding: str = ""
    phase: str = ""
    assumed: Assumed = field(default_factory=Assumed)
    speed: Speed = field(default_factory=Speed)

    def __post_init__(self) -> None:
        if self.count < 1 or self.price < 0:
            raise ConfigError(
                f"plan: --count must be at least 1 and --price not negative, got {self.count} and "
                f"{self.price}"
            )
        if self.sharding and self.sharding not in LAYOUTS:
            raise ConfigError(f"--sharding: no layout named {self.sharding!r}; one of {', '.join(LAYOUTS)}")


@dataclass(frozen=True)
class Trial:
    """A layout on `ranks` training GPUs, with engines on `engines` other GPUs (0: on the same ones)."""

    layout: str
    ranks: int
    engines: int
    memory: Memory
    usable: float
    engine_fits: bool
    seconds: StepSeconds
    overlapped: bool

    @property
    def fits(self) -> bool:
        """Whether the trainer's and the engine's memory suffice."""
        return self.memory.peak <= self.usable and self.engine_fits

    @property
    def step_seconds(self) -> float:
        """Seconds of a step: one part after the other, or the longer one where an engine of its own samples
        ahead."""
        return max(self.seconds.sampling, self.seconds.trainer) if self.overlapped else self.seconds.total


@dataclass(frozen=True)
class CostPlan:
    """All of a plan. `chosen` is the fastest trial that fits (None: none does), `change` the overrides of the
    smallest change that makes one fit."""

    ask: Ask
    setup: Setup
    micro: MicroBatch
    flops: StepFlops
    trials: tuple[Trial, ...]
    chosen: Trial | None
    change: tuple[str, ...]
    changed: Trial | None

    @property
    def tokens(self) -> float:
        """Sampled tokens of a step."""
        return self.setup.work.prompts * self.setup.work.group * self.setup.work.completion

    def price(self, trial: Trial) -> float:
        """Cost of 1,000 steps at the price that was asked with."""
        return cost(trial.step_seconds, trial.ranks + trial.engines, self.ask.price)


def engine_bytes(found: Setup, gpu: GPU) -> tuple[float, float]:
    """(bytes that an in-process engine reserves on a trainer's GPU, bytes of keys and values in them); (0, 0)
    for other engines."""
    if not found.in_process:
        return 0.0, 0.0
    reserved = float(vars(found.engine)["memory"]) * gpu.memory
    return reserved, max(0.0, reserved - engine_weights(found))


def engine_weights(found: Setup) -> float:
    """Bytes of an engine's own weights: in its type, and in 8 bits what `engine.quantization` rounds (but for
    its scales, and for a tower, which vLLM's models round or not)."""
    shape, fields = found.shape(), vars(found.engine)
    dtype, kind = fields.get("dtype"), fields.get("quantization")
    size = getattr(torch, dtype).itemsize if dtype else shape.size
    rounded = {"fp8": shape.linear + shape.experts, "int8": shape.experts}.get(str(kind).partition("_")[0], 0)
    return float(shape.parameters * size - rounded * (size - 1))


def trial(found: Setup, ask: Ask, layout: str, engines: int) -> Trial:
    """One layout. `engines` GPUs are the engine's own (0: it shares those of the trainer)."""
    ranks = ask.count - engines
    shape, work, gpu = found.shape(layout), found.work, ask.gpu
    reserved, kv = engine_bytes(found, gpu) if not engines else (0.0, 0.0)
    sampled_here = found.shares_weights and not engines
    cache = 0.0
    if sampled_here:
        groups = max(1.0, work.prompts / ranks)
        longest = groups * (work.max_prompt + work.group * work.max_completion)
        kv = cache = shape.kv_per_token * min(float(vars(found.engine)["token_budget"]), longest)
        if LAYOUTS[layout].weights_shared:  # sampling gathers all weights
            cache += shape.trained_bytes + shape.frozen_bytes
    memory = rank_memory(
        shape, longest_micro_batch(shape, work), LAYOUTS[layout], ranks, found.family.checkpointing,
        found.family.chunk, optimizer=found.optimizer,
        micro_batches=micro_batches(work, ranks), reference=work.reference, logged=work.logged,
        kv_cache=cache, engine=reserved,
        engine_sleeps=bool(vars(found.engine).get("sleep", False)),
    )  # fmt: skip
    if engines:
        kv = ENGINE_SHARE * gpu.memory - engine_weights(found)
    flops = step_flops(shape, work, found.family.checkpointing)
    at_least = shape.kv_per_token * (work.max_prompt + work.max_completion)
    sampling = sampling_seconds(shape, work, gpu, engines or ranks, max(kv, at_least), ask.speed, flops)
    seconds = StepSeconds(
        sampling=sampling, **trainer_seconds(shape, work, gpu, ranks, layout, ask.speed, flops)
    )
    loop = found.tree.get("loop", "synchronous")
    return Trial(
        layout,
        ranks,
        engines,
        memory,
        gpu.usable,
        kv >= at_least,
        seconds,
        overlapped=bool(engines) and loop != "synchronous",
    )


def trials(found: Setup, ask: Ask) -> Iterator[Trial]:
    """Every layout with the engine on the trainer's GPUs, and the best split with the engine on GPUs of its
    own."""
    names = (
        [ask.sharding]
        if ask.sharding
        else (["single"] if ask.count == 1 else [name for name in LAYOUTS if name != "single"])
    )
    size = found.work.sequence
    if ask.count % size == 0 and (found.shares_weights or found.in_process):
        yield from (trial(found, ask, name, 0) for name in names)
    if found.shares_weights:
        return
    for name in names:
        splits = [
            trial(found, ask, name, engines)
            for engines in splits_of(ask.count)
            if (ask.count - engines) % size == 0
        ]
        if splits:
            yield min(splits, key=lambda t: (not t.fits, t.step_seconds))


def splits_of(count: int) -> list[int]:
    """Numbers of GPUs for the engine that are tried: powers of two and three quarters, below `count`."""
    found = {1 << power for power in range(12)} | {count // 4, count // 2, 3 * count // 4}
    return sorted(number for number in found if 0 < number < count)


CHANGES = (  # what makes room without another result, then what changes which weights are trained
    "engine.sleep=true",
    "policy.checkpointing=true",
    "micro_batch_tokens=8192",
    "micro_batch_tokens=4096",
    "policy.chunk=256",
    "policy.attn=flex",
    "sequence_parallel=8",
    "engine.memory=0.5",
    "engine.memory=0.3",
    "trainable={name: lora, r: 16, alpha: 32}",
    "policy.quantize=nf4",
)


def applicable(found: Setup, change: str, count: int) -> bool:
    """Whether a change is one for this config on `count` GPUs."""
    key, _, value = change.partition("=")
    fields = vars(found.engine)
    tests: dict[str, Any] = {
        "engine.sleep": lambda: found.in_process and not fields["sleep"],
        "engine.memory": lambda: found.in_process and fields["memory"] > float(value),
        "policy.checkpointing": lambda: not found.family.checkpointing,
        "micro_batch_tokens": lambda: found.work.micro_batch_tokens > int(value),
        "policy.chunk": lambda: found.family.chunk > int(value),
        "policy.attn": lambda: found.work.dense and found.work.can_pack,
        "sequence_parallel": lambda: (
            # for rows that no smaller micro-batch makes shorter
            found.work.sequence == 1
            and count % int(value) == 0
            and not found.family.slices_problem
            and longest_micro_batch(found.shape(), found.work).tokens > found.work.micro_batch_tokens
        ),
        "trainable": lambda: found.shape().rank == 0,
        "policy.quantize": lambda: not found.family.quantize and bool(found.family.model),
    }
    return tests[key]()


def smallest_change(words: list[str], found: Setup, ask: Ask) -> tuple[tuple[str, ...], Trial | None]:
    """The fewest and mildest overrides under which a layout fits, with that trial; then more GPUs. ((), None)
    if nothing here makes it fit."""
    changes = [change for change in CHANGES if applicable(found, change, ask.count)]
    sets = [chosen for count in (1, 2, 3, 4) for chosen in combinations(changes, count)]
    for chosen in sorted(
        sets,
        key=lambda chosen: (any(c.startswith(("trainable", "policy.quantize")) for c in chosen), len(chosen)),
    ):
        keys = [change.partition("=")[0] for change in chosen]
        if len(set(keys)) < len(keys) or (
            "policy.quantize" in keys and "trainable" not in keys and not found.shape().rank
        ):
            continue
        if best := best_of(trials(changed(words, chosen, ask), ask)):
            return chosen, best
    for count in (2 * ask.count, 4 * ask.count, 8 * ask.count):
        if best := best_of(trials(found, replace(ask, count=count))):
            return (f"--count {count}",), best
    return (), None


def changed(words: list[str], overrides: tuple[str, ...], ask: Ask) -> Setup:
    """The setup with further overrides."""
    config = load(
        [word for word in words if "=" not in word], [*(word for word in words if "=" in word), *overrides]
    )
    return setup(config, ask.phase, ask.assumed)


def best_of(found: Iterator[Trial]) -> Trial | None:
    """The fastest trial that fits."""
    return min((t for t in found if t.fits), key=lambda t: t.step_seconds, default=None)


def make_plan(config: Config, words: list[str], ask: Ask) -> CostPlan:
    """The plan of a config. Raises ConfigError for a model whose shape is not known."""
    found = setup(config, ask.phase, ask.assumed)
    shape = found.shape()
    all_trials = tuple(trials(found, ask))
    chosen = best_of(iter(all_trials))
    change, after = ((), None) if chosen else smallest_change(words, found, ask)
    micro = longest_micro_batch(shape, found.work)
    return CostPlan(
        ask,
        found,
        micro,
        step_flops(shape, found.work, found.family.checkpointing),
        all_trials,
        chosen,
        change,
        after,
    )
