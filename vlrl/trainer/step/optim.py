"""Accelerator, optimizer and learning-rate schedule; one optimizer step on one process or many."""

from __future__ import annotations

import math
import os
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

import torch

from vlrl.config.settings import Optimizer
from vlrl.plugins.registry import ConfigError
from vlrl.policy.params import trains_in_half_precision
from vlrl.services.third_party import skip_unused
from vlrl.trainer.ranks.collectives import state_sharded

if TYPE_CHECKING:
    from accelerate import Accelerator

    from vlrl.plugins.contexts import RunContext


def make_accelerator(run: RunContext) -> Accelerator:
    """Accelerate's view of the devices. Communication is gloo where there is no GPU."""
    from accelerate import Accelerator, InitProcessGroupKwargs

    skip_unused()
    for phase in run.phases:
        _optimizer_class(
            phase.settings.optimizer.kind
        )  # an unavailable optimizer is reported before a model is loaded
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
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    share = (step - settings.warmup) / max(1, steps - settings.warmup)
    floor = settings.min_lr_share
    table = {
        "constant": 1.0,
        "linear": floor + (1 - floor) * (1 - share),
        "cosine": floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, share))),
    }
    return table[settings.schedule]


def make_optimizer(run: RunContext) -> None:
    """(Re)build the optimizer over what the phase's `tune` trains, and hand model and optimizer to
    accelerate."""
    settings = run.settings.optimizer
    policy = run.policy
    policy.params.unwrap(run.accelerator)
    groups = run.trainable(policy)
    if (
        policy.params.wrapped is None
    ):  # weights that FSDP has sharded keep their dtype, which is the same for all of them
        policy.params.upcast_trainable(include_frozen=run.accelerator.distributed_type.value == "FSDP")
    if not any(len(group["params"]) for group in groups):
        raise ConfigError(f"trainable: {run.trainable.name!r} leaves nothing to train in phase {run.phase!r}")
    _check_precision(run, [p for group in groups for p in group["params"]])
    cls, extra = _optimizer_class(settings.kind, run.accelerator.device.type)
    if settings.kind not in ("adamw", "sgd") and state_sharded(run.accelerator):
        raise ConfigError(
            f"optimizer.kind: {settings.kind!r} keeps states that cannot be sharded over ranks; use "
            "'adamw' (zero2_offload and "
            "zero3_offload keep its states in host memory), or DDP"
        )
    betas = {} if settings.kind == "sgd" else {"betas": tuple(settings.betas), "eps": settings.eps}
    for group in groups:
        group.setdefault("lr", settings.lr)
    optimizer = cls(groups, lr=settings.lr, weight_decay=settings.weight_decay, **betas, **extra)
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    plugin = getattr(run.accelerator.state, "deepspeed_plugin", None)
    if plugin is not None:  # DeepSpeed clips by itself
        plugin.deepspeed_config["gradient_clipping"] = settings.max_grad_norm
    if policy.params.wrapped is None:
        policy.params.wrapped, run.optimizer = run.accelerator.prepare(policy.params.net, optimizer)
    else:  # FSDP shards a module once; a new optimizer already holds the sharded weights
        run.optimizer = run.accelerator.prepare_optimizer(optimizer)


def _check_precision(run: RunContext, trained: list[torch.Tensor]) -> None:
    """Warn where small updates are rounded away. Raises ConfigError where DeepSpeed would cast the weights by
    itself."""
    plugin = getattr(run.accelerator.state, "deepspeed_plugin", None)
    for name in ("bf16", "fp16"):
        if plugin is not None and plugin.deepspeed_config.get(name, {}).get("enabled") is True:
            raise ConfigError(
                f"{name} is enabled in the DeepSpeed config; leave it out there and set policy.dtype: "
                "bfloat16, which keeps float32 master weights"
            )
    if trains_in_half_precision(trained):
        run.warn(
            f"policy.fp32_master_weights is off: weights are trained in {run.family.dtype}, which rounds "
            "updates below 1/512 of a weight away"
        )


def set_learning_rate(run: RunContext) -> None:
    """The schedule's rate for the next optimizer step; before its backward pass, in which DeepSpeed steps."""
    settings = run.settings
    per_step = settings.num_minibatches * settings.ppo_epochs
    index = run.phase_step * per_step + run.stats.updates
    factor = learning_rate_factor(settings.optimizer, index, settings.steps * per_step)
    for group in run.optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    run.learning_rate = settings.optimizer.lr * factor


def accumulating(run: RunContext, last: bool) -> AbstractContextManager:
    """Context of the forward and backward of a micro-batch: gradients are synchronised across ranks with the
    last one only."""
    return nullcontext() if last else run.accelerator.no_sync(run.policy.params.wrapped)


def backward(run: RunContext, loss: torch.Tensor, last: bool) -> None:
    """Accumulate gradients; they are synchronised across ranks with the last micro-batch only.

    Loss denominators are global, so the loss is multiplied by the number of ranks: DDP's mean over ranks then
    gives the sum.
    """
    accelerator = run.accelerator
    accelerator.gradient_state._set_sync_gradients(last)
    accelerator.backward(loss * accelerator.num_processes)


def optimizer_step(run: RunContext) -> dict[str, float]:
    """Clip, step, zero. Returns the gradient norm before clipping and the learning rate.

    Raises FloatingPointError for a gradient that is not finite.
    """
    optimizer = run.settings.optimizer
    params = [p for group in run.optimizer.param_groups for p in group["params"]]
    # no gradient here (a text-only batch leaves the vision tower out) is a gradient of zero, as it is where
    # ranks share them
    for p in params:
        if p.grad is None and run.accelerator.distributed_type.value != "DEEPSPEED":
            p.grad = torch.zeros_like(p)
    if run.accelerator.distributed_type.value == "FSDP":
        params = list(
            run.policy.params.wrapped.parameters()
        )  # accelerate identifies the module by this exact list
    limit = optimizer.max_grad_norm if optimizer.max_grad_norm > 0 else float("inf")
    known = run.accelerator.clip_grad_norm_(params, limit)  # None: DeepSpeed does not report it
    norm = float("nan") if known is None else float(known)
    if known is not None and not math.isfinite(norm):
        raise FloatingPointError(
            f"step {run.step}: the gradient norm is {norm}; lower optimizer.lr or look at the last rollouts"
        )
    run.optimizer.step()
    run.optimizer.zero_grad()
    run.stats.updates += 1
    return {"grad_norm": norm, "lr": run.learning_rate}
