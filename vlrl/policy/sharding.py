"""Weights sharded over ranks (DeepSpeed ZeRO-3, FSDP2): gathering them temporarily, and reading them out in
full.

Every function here is a collective: all ranks call it, or none does.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import Any, cast

from vlrl.policy.adapters import has_adapter
from vlrl.policy.family import base
from vlrl.policy.tower import keep_tower_arguments, tower_arguments
from vlrl.services.lazy import Tensor, nn, torch


def world_size() -> int:
    """Number of training processes."""
    return (
        torch.distributed.get_world_size()
        if torch.distributed.is_available() and torch.distributed.is_initialized()
        else 1
    )


def is_main() -> bool:
    """Whether this is the main process, which writes files."""
    return world_size() == 1 or torch.distributed.get_rank() == 0


def is_zero3(module: Any) -> bool:
    """Whether `module` is a DeepSpeed engine whose weights are sharded."""
    return (
        module is not None
        and hasattr(module, "zero_optimization_partition_weights")
        and module.zero_optimization_partition_weights()
    )


def is_fsdp(module: nn.Module | None) -> bool:
    """Whether FSDP2 has sharded `module`."""
    return module is not None and any(type(m).__name__.startswith("FSDP") for m in module.modules())


def is_sharded(module: nn.Module | None) -> bool:
    """Whether a forward of `module` is a collective."""
    return is_zero3(module) or is_fsdp(module)


def most_chunks(count: int, chunk: int, head: Any) -> int:
    """The number of chunks of at most `chunk` tokens on the rank that has most of its `count`; 0 where the
    output layer `head` is no share of ZeRO-3.

    ZeRO-3 gathers the layer's weight in every call of it, so that all ranks must call it equally often.
    """
    if world_size() == 1 or not any(hasattr(p, "ds_id") for p in head.parameters()):
        return 0
    weight = next(head.parameters())
    most = torch.tensor(-(-count // chunk), device=weight.device)
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    return int(most)


@contextmanager
def gather_params(module: nn.Module) -> Iterator[None]:
    """Inside, every rank holds all weights, so that forwards (without gradient) are not collectives. Weights
    must not be changed. Not for FSDP."""
    if is_zero3(module):
        with _gather_zero3(module):
            yield
    else:
        yield


@contextmanager
def _gather_zero3(engine: Any) -> Iterator[None]:
    import deepspeed

    offload = getattr(engine.optimizer, "parameter_offload", engine.optimizer)
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        # the hooks would gather and free the weights of each submodule: a collective in every forward
        for parameter in engine.module.parameters():
            parameter.ds_active_sub_modules.clear()
        for hook in (*offload.forward_hooks, *offload.backward_hooks):
            hook.remove()
        offload.forward_hooks, offload.backward_hooks = [], []
        try:
            yield
        finally:
            offload._register_deepspeed_module(offload.module)


def whole_shares(parameter: Any, layer: Any = None) -> AbstractContextManager[None]:
    """Inside, this parameter is whole where ZeRO-3 has spread it, and so are the adapters of its `layer`. A
    collective."""
    if not hasattr(parameter, "ds_id"):
        return nullcontext()
    import deepspeed

    beside = [p for name, p in layer.named_parameters() if "lora_" in name] if layer is not None else []
    gathered: AbstractContextManager[None] = deepspeed.zero.GatheredParameters([parameter, *beside])
    return gathered


def whole(tensor: Tensor, gather: bool = True) -> Tensor:
    """A tensor of which ranks may hold shares (FSDP2), made whole if `gather`: a collective."""
    return (
        cast(Tensor, cast(Any, tensor).full_tensor()) if gather and hasattr(tensor, "full_tensor") else tensor
    )


def unsharded_copy(module: nn.Module, model: Any, attn_implementation: str) -> Any:
    """An unsharded copy, on every rank, of the transformers model inside a module that FSDP2 has sharded."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    state = cast(
        dict[str, Tensor], get_model_state_dict(module, options=StateDictOptions(full_state_dict=True))
    )
    return model_from_state(
        {name.removeprefix("model."): value for name, value in state.items()}, model, attn_implementation
    )


def model_from_state(state: Mapping[str, Tensor], model: Any, attn_implementation: str) -> Any:
    """An unsharded model with the architecture (and adapter) of `model`, which may be sharded, that holds the
    tensors of `state` themselves."""
    inner = base(model)
    attention = inner.config.get_text_config()._attn_implementation
    arguments = tower_arguments(inner.config)
    with without_zero3_init():
        fresh = type(inner)._from_config(inner.config, attn_implementation=attn_implementation)
    # the names that it is saved under
    fresh._weight_conversions = getattr(inner, "_weight_conversions", None)
    for one in (inner, fresh):  # the constructor wrote into a config that both may share
        keep_tower_arguments(one, arguments)
        one.config.get_text_config()._attn_implementation = attention
    if has_adapter(model):
        from peft import get_peft_model

        fresh = get_peft_model(fresh, copy.deepcopy(model.peft_config["default"]))
    fresh.load_state_dict(state, assign=True)
    base(fresh).tie_weights()
    return fresh.to(next(iter(state.values())).device).eval()


@contextmanager
def without_zero3_init() -> Iterator[None]:
    """Inside, transformers builds models with all weights on this rank, also when ZeRO-3 is on."""
    with redirect_stdout(
        sys.stderr
    ):  # DeepSpeed's logger keeps this stream for good, and standard output may be JSON
        from transformers.integrations import deepspeed

    saved = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = saved


def unwrap(accelerator: Any, module: Any) -> None:
    """Undo the changes that a distributed engine made to the module it wraps, so that the module can be
    wrapped again (next phase)."""
    if is_zero3(module):
        inner: nn.Module = module.module
        with gather_params(module):
            plain = {
                id(p): nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad)
                for p in inner.parameters()
            }
        accelerator.free_memory()
        for part in inner.modules():  # weights that two modules share stay shared
            part._parameters.update(
                {name: plain[id(p)] for name, p in part._parameters.items() if p is not None}
            )
    else:
        accelerator.free_memory()


def full_state_dict(module: Any) -> dict[str, Tensor]:
    """All weights on the CPU of the main process (other ranks may get an empty dict), under their names in
    `module`."""
    if is_fsdp(module):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        return cast(
            dict[str, Tensor],
            get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True)),
        )
    inner: nn.Module = module.module if is_zero3(module) else module
    with gather_params(module):
        return (
            {name: value.detach().cpu().clone() for name, value in inner.state_dict().items()}
            if is_main()
            else {}
        )
