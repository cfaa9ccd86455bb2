"""Accelerator, optimizer and learning-rate schedule; one optimizer step on one process or many."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

from vlrl.config.settings import Optimizer, Settings
from vlrl.plugins.registry import ConfigError
from vlrl.services.lazy import torch
from vlrl.services.third_party import skip_unused
from vlrl.trainer.phase import PhasePlan
from vlrl.trainer.ranks.collectives import state_sharded
from vlrl.trainer.step.step import Step

if TYPE_CHECKING:
    from accelerate import Accelerator

    from vlrl.policy.policy import Policy


def make_accelerator(optimizers: Sequence[Optimizer]) -> Accelerator:
    """Accelerate's view of the devices. Communication is gloo where there is no GPU."""
    from accelerate import Accelerator, InitProcessGroupKwargs

    skip_unused()
    for optimizer in optimizers:  # an unavailable one is reported before a model is loaded
        _optimizer_class(optimizer.kind)
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    on_cpu = not torch.cuda.is_available()
    handlers = [InitProcessGroupKwargs(backend="gloo")] if on_cpu and not alone else []
    deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
    if deepspeed and on_cpu:
        _deepspeed_on_cpu()
    accelerator = Accelerator(cpu=on_cpu and not deepspeed, kwargs_handlers=handlers)
    if not alone and accelerator.distributed_type.value == "NO":
        raise ConfigError(
            f"{os.environ['WORLD_SIZE']} processes were started, but accelerate joins none of them; launch "
            "with configs/accelerate/*.yaml"
        )
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" and not alone:
        _fsdp_on_cpu(accelerator)
    return accelerator


def _deepspeed_on_cpu() -> None:
    """Let DeepSpeed's ranks on a CPU speak by gloo alone: its shared-memory operator is compiled for a minute
    at the first start, and a process that dies meanwhile leaves a lock at which all later ones wait."""
    try:
        with redirect_stdout(
            sys.stderr
        ):  # its logger keeps this stream for good, and standard output may be JSON
            import deepspeed
    except ImportError:
        return  # accelerate says what is missing
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def _fsdp_on_cpu(accelerator: Accelerator) -> None:
    """Enable FSDP2 on CPU: accelerate enables FSDP for devices only, but torch's FSDP2 runs over gloo."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    state = accelerator.state
    if state.distributed_type == DistributedType.MULTI_CPU:
        state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, FullyShardedDataParallelPlugin()
        PartialState._shared_state["distributed_type"] = (
            DistributedType.FSDP
        )  # new PartialState objects copy it
    if not accelerator.is_fsdp2:
        raise ConfigError(
            f"FSDP was asked for, but accelerate runs {state.distributed_type.value}, version "
            f"{getattr(state, 'fsdp_plugin', None)}; "
            "only version 2 is supported: fsdp_config: {fsdp_version: 2}, as in configs/accelerate/fsdp2.yaml"
        )


def _optimizer_class(kind: str, device: str = "cpu") -> tuple[Any, dict[str, Any]]:
    if kind == "sgd":
        return torch.optim.SGD, {}
    if kind == "adamw":
        sharded = any(
            os.environ.get(f"ACCELERATE_USE_{engine}", "false").lower() == "true"
            for engine in ("DEEPSPEED", "FSDP")
        )
        return torch.optim.AdamW, {
            "fused": True
        } if device == "cpu" and not sharded else {}  # on a CPU one pass over memory in place of ten
    try:
        import bitsandbytes
    except ImportError:
        raise ConfigError(
            f"optimizer.kind: {kind!r} needs bitsandbytes; `pip install bitsandbytes`, or use 'adamw'"
        ) from None
    if not torch.cuda.is_available():
        raise ConfigError(f"optimizer.kind: {kind!r} needs a GPU, and there is none; use 'adamw'")
    names = {"adamw_8bit": "AdamW8bit", "paged_adamw": "PagedAdamW", "paged_adamw_8bit": "PagedAdamW8bit"}
    return getattr(bitsandbytes.optim, names[kind]), {}


def learning_rate_factor(settings: Optimizer, step: int, steps: int) -> float:
    """The factor on `lr` at optimizer step `step` (0-based) of `steps`: linear warm-up, then constant, linear
    or cosine decay to `min_lr_share`."""
    warmup = settings.warmup_steps(steps)
    if step < warmup:
        return (step + 1) / warmup
    share = (step - warmup) / max(1, steps - warmup)
    floor = settings.min_lr_share
    table = {
        "constant": 1.0,
        "linear": floor + (1 - floor) * (1 - share),
        "cosine": floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, share))),
    }
    return table[settings.schedule]


def make_optimizer(
    policy: Policy, accelerator: Accelerator, phase: PhasePlan, warn: Callable[[str], None]
) -> torch.optim.Optimizer:
    """The optimizer over what the phase's `trainable` trains, with the model handed to accelerate.

    Raises ConfigError where nothing is left to train, and for a kind that cannot be sharded.
    """
    settings = phase.settings.optimizer
    policy.params.unwrap(accelerator)
    groups = phase.trainable(policy)
    if policy.params.wrapped is None:  # what FSDP has sharded keeps its dtype, the same for all weights
        policy.params.upcast_trainable(include_frozen=accelerator.distributed_type.value == "FSDP")
    if not any(len(group["params"]) for group in groups):
        raise ConfigError(
            f"trainable: {phase.trainable.name!r} leaves nothing to train in phase {phase.phase!r}"
        )
    _check_precision(accelerator, policy, [p for group in groups for p in group["params"]], warn)
    cls, extra = _optimizer_class(settings.kind, accelerator.device.type)
    if settings.kind not in ("adamw", "sgd") and state_sharded(accelerator):
        raise ConfigError(
            f"optimizer.kind: {settings.kind!r} keeps states that cannot be sharded over ranks; use 'adamw' "
            "(zero2_offload and zero3_offload keep its states in host memory), or DDP"
        )
    betas = {} if settings.kind == "sgd" else {"betas": tuple(settings.betas), "eps": settings.eps}
    for group in groups:
        group.setdefault("lr", settings.lr)
    optimizer = cls(groups, lr=settings.lr, weight_decay=settings.weight_decay, **betas, **extra)
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    if plugin is not None:  # DeepSpeed clips by itself
        plugin.deepspeed_config["gradient_clipping"] = settings.max_grad_norm
    return policy.params.prepare(accelerator, optimizer)


def _check_precision(
    accelerator: Accelerator, policy: Policy, trained: list[torch.Tensor], warn: Callable[[str], None]
) -> None:
    """Warn where small updates are rounded away. Raises ConfigError where DeepSpeed would cast the weights by
    itself."""
    from vlrl.policy.params import trains_in_half_precision  # imports torch

    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    for name in ("bf16", "fp16"):
        if plugin is not None and plugin.deepspeed_config.get(name, {}).get("enabled") is True:
            raise ConfigError(
                f"{name} is enabled in the DeepSpeed config; leave it out there and set policy.dtype: "
                "bfloat16, which keeps float32 master weights"
            )
    if trains_in_half_precision(trained):
        warn(
            f"policy.fp32_master_weights is off: weights are trained in {policy.family.dtype}, which rounds "
            "updates below 1/512 of a weight away"
        )


def scheduled_rate(optimizer: torch.optim.Optimizer, settings: Settings, step: Step) -> float:
    """Set the schedule's rate for the next optimizer step, before its backward pass, in which DeepSpeed
    steps.
    Returns the base rate."""
    per_step = settings.num_minibatches * settings.ppo_epochs
    index = step.phase_step * per_step + step.updates
    factor = learning_rate_factor(settings.optimizer, index, settings.steps * per_step)
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    return settings.optimizer.lr * factor


def accumulating(accelerator: Accelerator, policy: Policy, last: bool) -> AbstractContextManager:
    """Context of the forward and backward of a micro-batch: gradients are synchronised across ranks with the
    last one only."""
    return nullcontext() if last else accelerator.no_sync(policy.params.wrapped)


def backward(accelerator: Accelerator, loss: torch.Tensor, last: bool) -> None:
    """Accumulate gradients; they are synchronised across ranks with the last micro-batch only.

    Loss denominators are global, so the loss is multiplied by the number of ranks: DDP's mean over ranks then
    gives the sum.
    """
    accelerator.gradient_state._set_sync_gradients(last)
    accelerator.backward(loss * accelerator.num_processes)


def optimizer_step(
    accelerator: Accelerator, policy: Policy, optimizer: torch.optim.Optimizer, limit: float, step: Step
) -> float:
    """Clip to the norm `limit` (0: not), step, zero. Returns the gradient norm before clipping.

    Raises FloatingPointError for a gradient that is not finite.
    """
    params = [p for group in optimizer.param_groups for p in group["params"]]
    # no gradient here (a text-only batch leaves the vision tower out) is a gradient of zero, as it is where
    # ranks share them
    for p in params:
        if p.grad is None and accelerator.distributed_type.value != "DEEPSPEED":
            p.grad = torch.zeros_like(p)
    if accelerator.distributed_type.value == "FSDP":  # accelerate identifies the module by this exact list
        params = policy.params.wrapped_parameters
    known = accelerator.clip_grad_norm_(params, limit or float("inf"))  # None: DeepSpeed does not report it
    norm = float("nan") if known is None else float(known)
    if known is not None and not math.isfinite(norm):
        raise FloatingPointError(
            f"step {step.number}: the gradient norm is {norm}; lower optimizer.lr or look at the last "
            "rollouts"
        )
    optimizer.step()
    optimizer.zero_grad()
    step.count_update()
    return norm
