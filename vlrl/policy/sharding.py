"""Weights that are spread over ranks (DeepSpeed ZeRO-3, FSDP2): having them whole for a while, and reading them out whole.

Every function here is a collective: all ranks call it, or none does.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn


def world_size() -> int:
    """Processes that train together."""
    return torch.distributed.get_world_size() if torch.distributed.is_available() and torch.distributed.is_initialized() else 1


def is_main() -> bool:
    """Whether this process is the one that writes."""
    return world_size() == 1 or torch.distributed.get_rank() == 0


def is_zero3(module: nn.Module | None) -> bool:
    """A DeepSpeed engine whose weights are spread."""
    return module is not None and hasattr(module, "zero_optimization_partition_weights") and module.zero_optimization_partition_weights()  # type: ignore[operator]


def is_fsdp(module: nn.Module | None) -> bool:
    """A module that FSDP2 has spread."""
    return module is not None and any(type(m).__name__.startswith("FSDP") for m in module.modules())


def is_sharded(module: nn.Module | None) -> bool:
    """Whether a forward of `module` is a collective."""
    return is_zero3(module) or is_fsdp(module)


@contextmanager
def whole(module: nn.Module) -> Iterator[None]:
    """Inside, every rank holds all weights and forwards (without gradient) are its own affair; weights must not be changed. Not for FSDP."""
    if is_zero3(module):
        with _zero3_whole(module):
            yield
    else:
        yield


@contextmanager
def _zero3_whole(engine: Any) -> Iterator[None]:
    import deepspeed

    offload = getattr(engine.optimizer, "parameter_offload", engine.optimizer)
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        # the hooks would gather and free module by module: a collective in every forward
        for parameter in engine.module.parameters():
            parameter.ds_active_sub_modules.clear()
        for hook in (*offload.forward_hooks, *offload.backward_hooks):
            hook.remove()
        offload.forward_hooks, offload.backward_hooks = [], []
        try:
            yield
        finally:
            offload._register_deepspeed_module(offload.module)


def plain_copy(module: nn.Module, model: Any, kernel: str) -> Any:
    """The transformers model inside a module that FSDP2 has spread, as a plain one with all weights, on every rank."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    state = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True))
    return filled(model, {name.removeprefix("model."): value for name, value in state.items()}, kernel)


def filled(model: Any, state: Mapping[str, Tensor], kernel: str) -> Any:
    """A plain model built like `model` (adapter and all, which may be spread) that holds these very tensors."""
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    with plain_construction():
        fresh = type(inner)._from_config(inner.config, attn_implementation=kernel)
    fresh.config.get_text_config()._attn_implementation = inner.config.get_text_config()._attn_implementation
    if hasattr(model, "peft_config"):
        from peft import get_peft_model

        fresh = get_peft_model(fresh, copy.deepcopy(model.peft_config["default"]))
    fresh.load_state_dict(state, assign=True)
    (fresh.get_base_model() if hasattr(model, "peft_config") else fresh).tie_weights()
    return fresh.to(next(iter(state.values())).device).eval()


@contextmanager
def plain_construction() -> Iterator[None]:
    """Inside, transformers builds models whole even where ZeRO-3 is on."""
    with redirect_stdout(sys.stderr):  # where DeepSpeed's log then goes for good: stdout may be JSON
        from transformers.integrations import deepspeed

    kept = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = kept


def release(accelerator: Any, module: nn.Module) -> None:
    """Undo what a distributed engine did to the module that it wraps, so that it can be wrapped anew (another phase, other frozen parts)."""
    if is_zero3(module):
        inner: nn.Module = module.module  # type: ignore[assignment]
        with whole(module):
            plain = {id(p): nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad) for p in inner.parameters()}
        accelerator.free_memory()
        for part in inner.modules():  # weights that two modules share stay shared
            part._parameters.update({name: plain[id(p)] for name, p in part._parameters.items() if p is not None})
    else:
        accelerator.free_memory()


def full_state(module: nn.Module) -> dict[str, Tensor]:
    """All weights on the CPU of the main process (elsewhere possibly nothing), under the names they have in `module`."""
    if is_fsdp(module):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        return get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    inner = module.module if is_zero3(module) else module
    with whole(module):
        return {name: value.detach().cpu().clone() for name, value in inner.state_dict().items()} if is_main() else {}  # type: ignore[union-attr]
