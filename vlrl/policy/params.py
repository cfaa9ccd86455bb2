"""The policy's weights: loaded or built, adapted, kept in float32 while trained, gathered from their shards,
copied as a reference, saved."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlrl.policy import adapters, cpu_matmul, experts, recurrent, routing, scaled_tables, sharding
from vlrl.policy.adapters import cast_weights
from vlrl.policy.family import Family, forbidden_ids
from vlrl.policy.forward import Net
from vlrl.policy.tower import MediaEncoder
from vlrl.policy.tree_attention import configure_attention
from vlrl.services.third_party import without_mistral

MATMUL_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def is_matmul(module: nn.Module) -> bool:
    """Whether a layer is a matrix product or a convolution."""
    return isinstance(module, MATMUL_LAYERS)


def multiplies(module: nn.Module) -> bool:
    """Whether autocast rounds a module's weights: a matrix product, a convolution, the experts of a
    mixture."""
    return is_matmul(module) or experts.is_experts(module)


class Params:
    """The weights of a policy, and the modules that hold them.

    `net` is the module that an accelerator prepares; `wrapped` is the module that it returned (None before).
    `gathered` is True while sharded weights are gathered. `media` runs the vision tower. `base_origin`
    describes how the base of an adapter is made again (None: its weights must be saved). `forbidden_ids` have
    probability 0 in every forward; saved generation configs name them (`suppress_tokens`), so that
    transformers' `generate` samples the same law.
    """

    def __init__(
        self,
        model: Any,
        family: Family,
        device: torch.device,
        base_origin: dict[str, Any] | None,
        forbidden_ids: tuple[int, ...] = (),
    ) -> None:
        self.media = MediaEncoder(family)
        self.net = Net(model.eval(), family, forbidden_ids, self.media)
        self.forbidden_ids = forbidden_ids
        self.wrapped: nn.Module | None = None
        self.family = family
        self.device = device
        self.gathered = False
        self.base_origin = base_origin
        self.reference: nn.Module | None = None

    @classmethod
    def load(cls, family: Family, device: torch.device, seed: int) -> tuple[Params, Any]:
        """(params, processor) of a family: `family.model` loaded, or `family.tiny` built with random weights
        from `seed`."""
        source, base_seed = adapters.base_of(family)
        seed = seed if base_seed is None else base_seed
        with sharding.without_zero3_init(), without_mistral():
            if source.model:
                model, processor = source.load()
            else:
                assert source.tiny is not None
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(source.tiny.seed + seed)
                    model, processor = source.build(source.tiny)
        family.limit_pixels(processor, model.config)
        configure_attention(family, model, device)
        recurrent.install(model)
        experts.install(model)
        scaled_tables.install(model, family.compute_dtype)
        if family.router_replay:
            routing.install(model, "policy.router_replay")
        if device.type == "cpu":
            cpu_matmul.install(model)
        if not family.quantize:
            module: nn.Module = model
            cast_weights(module.to(device), family.load_dtype)
        if device.type == "cpu" and source.model:
            # the alignment of memory-mapped tensors changes the last bits of results
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.data = tensor.data.clone()
        if family.checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        # a run may delete its own checkpoints
        base_origin = None if source.is_own_checkpoint else adapters.base_description(source, seed)
        forbidden = forbidden_ids(family, model, processor)
        if forbidden and getattr(model, "generation_config", None) is not None:
            model.generation_config.suppress_tokens = list(forbidden)
        if source is not family:
            model = adapters.load_adapter(model, family.model)
        return cls(model, family, device, base_origin, forbidden), processor

    @property
    def model(self) -> Any:
        """The transformers model, inside its PEFT wrapper if it has an adapter."""
        return self.net.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        self.net.model = model

    @property
    def has_adapter(self) -> bool:
        """Whether an adapter (PEFT) is on the model."""
        return adapters.has_adapter(self.model)

    def with_model(self, model: nn.Module) -> Params:
        """A view that runs `model` instead, unwrapped; everything else is shared."""
        other = copy.copy(self)
        other.net, other.wrapped = Net(model, self.family, self.forbidden_ids, self.media), None
        return other

    # --- precision ------------------------------------------------------------------------------------------

    def autocast(self) -> AbstractContextManager:
        """Matrix products in `family.dtype`, whatever type the weights are stored in."""
        return self.family.autocast(self.device)

    def upcast_trainable(self, include_frozen: bool = False) -> None:
        """Store trained weights (`requires_grad`) in float32 and frozen ones in `family.dtype` (in float32
        too if `include_frozen`).

        Called before the optimizer is made. No effect without `fp32_master_weights`, or if `family.dtype` is
        float32.
        """
        if self._mixed_precision:
            upcast_trainable(self.model, torch.float32 if include_frozen else self.family.compute_dtype)

    @property
    def _mixed_precision(self) -> bool:
        return self.family.fp32_master_weights and self.family.compute_dtype != torch.float32

    # --- sharding -------------------------------------------------------------------------------------------

    @property
    def forward_is_collective(self) -> bool:
        """Whether gradients or weights cross ranks in the next forward, which then goes through the wrapped
        module."""
        return (
            self.wrapped is not None
            and not self.gathered
            and (torch.is_grad_enabled() or sharding.is_sharded(self.wrapped))
        )

    def prepare(self, accelerator: Any, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Hand model and optimizer to accelerate; returns its optimizer."""
        if self.wrapped is not None:  # FSDP shards a module once; this optimizer holds the sharded weights
            return accelerator.prepare_optimizer(optimizer)
        self.wrapped, prepared = accelerator.prepare(self.net, optimizer)
        return prepared

    @property
    def wrapped_parameters(self) -> list[nn.Parameter]:
        """The parameters of the module that accelerate returned."""
        assert self.wrapped is not None
        return list(self.wrapped.parameters())

    def unwrap(self, accelerator: Any) -> None:
        """Take the model back from a distributed engine (a collective), so that it can be wrapped again.
        FSDP's sharding stays."""
        if self.wrapped is not None and not sharding.is_fsdp(self.wrapped):
            sharding.unwrap(accelerator, self.wrapped)
            self.wrapped = None

    @contextmanager
    def gather_params(self) -> Iterator[None]:
        """Inside, all weights are on every rank, for sampling and for forwards without gradient that not all
        ranks make.

        A collective if weights are sharded.
        """
        if self.gathered or not sharding.is_sharded(self.wrapped):
            with self.autocast():  # the outermost autocast: it casts the weights once for all forwards inside
                yield
            return
        assert self.wrapped is not None
        sharded_net = self.net
        if sharding.is_fsdp(
            self.wrapped
        ):  # FSDP's hooks would gather and free in every forward, so an unsharded copy replaces the module
            copied = sharding.unsharded_copy(self.wrapped, self.model, self.family.attn_implementation)
            self.net = Net(copied, self.family, self.forbidden_ids, self.media)
        gather = nullcontext() if sharding.is_fsdp(self.wrapped) else sharding.gather_params(self.wrapped)
        with gather, self.autocast():
            self.gathered = True
            try:
                yield
            finally:
                self.gathered = False
                self.net = sharded_net

    # --- adapters and the KL reference ----------------------------------------------------------------------

    def add_adapter(
        self, options: Mapping[str, Any], parts: tuple[str, ...], targets: str, base_is_trained: bool
    ) -> None:
        """Put an adapter on the model and freeze everything else. No effect if the model already has one.

        `base_is_trained`: the weights differ from the loaded ones, so that they must be saved with the
        adapter; so do those of an adapter that is initialised from the weights (`options["alters_base"]`).
        """
        if self.has_adapter:
            return
        fields = dict(options)
        if fields.pop("alters_base", False) or base_is_trained:
            self.base_origin = None
        self.model = adapters.attach_lora(self.model, fields, parts, targets)

    def keep_reference(self, renew: bool = False) -> None:
        """Copy the weights as they are now as the reference, unless there is one already (or `renew`).

        With an adapter there is no copy: the reference is the model with the adapter switched off.
        """
        if self.has_adapter or (self.reference is not None and not renew):
            return
        if sharding.is_sharded(self.wrapped):  # sharded weights cannot be copied directly
            with self.gather_params():
                state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
                reference = sharding.model_from_state(state, self.model, self.family.attn_implementation)
        else:
            reference = copy.deepcopy(self.model)
        reference.eval().requires_grad_(False)
        self.reference = reference
        if self._mixed_precision:
            upcast_trainable(reference, self.family.compute_dtype)

    def disable_adapter(self) -> AbstractContextManager:
        """Inside, the adapter is switched off. Raises RuntimeError if there is neither an adapter nor a
        reference."""
        if not self.has_adapter:
            raise RuntimeError("no reference was kept: call keep_reference() before training")
        return self.model.disable_adapter()

    # --- saving ---------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, processor: Any) -> None:
        """Write a transformers folder: model (an adapter merged, and also saved separately) and processor.

        A collective if weights are sharded (the main process writes).
        """
        state: dict[str, Tensor] | None = None
        if sharding.is_sharded(self.wrapped):
            state = {
                name.removeprefix("model."): value
                for name, value in sharding.full_state_dict(self.wrapped).items()
            }
        if not sharding.is_main():
            return
        if self.has_adapter:
            model = (
                self.model
                if state is None
                else sharding.model_from_state(state, self.model, self.family.attn_implementation)
            )
            adapters.save_with_adapter(
                model, processor, self.base_origin, bool(self.family.quantize), Path(folder)
            )
        else:
            self.model.save_pretrained(folder, **({"state_dict": state} if state is not None else {}))
        processor.save_pretrained(folder)


def upcast_trainable(model: nn.Module, frozen_dtype: torch.dtype) -> None:
    """Cast all weights to float32 except the frozen ones of matrix products, which are cast to
    `frozen_dtype`, and frozen embedding tables that are in it already, which stay so.

    Autocast rounds the former to `frozen_dtype` in any case, and rows of the latter are looked up in float32,
    so it does not change results which weights are frozen. A bfloat16 has 8 significant bits: trained in it,
    an update below 1/512 of a weight is rounded away, which is every update at a learning rate of 1e-6.
    Quantised weights stay as they are; experts with an adapter of their own become float32, as the sum of
    both.
    """
    scaled: list[Any] = [module for module in model.modules() if scaled_tables.is_scaled(module)]
    for table in scaled:
        table.in_float32 = True
    tables = [
        module
        for module in model.modules()
        if (type(module) is nn.Embedding or module in scaled) and module.weight.dtype == frozen_dtype
    ]
    tables = [
        module for module in tables if not module.weight.requires_grad and frozen_dtype != torch.float32
    ]
    matmul = _own_parameters(model, multiplies)
    matmul -= {id(wrapper.get_param()) for wrapper in adapters.adapted_experts(model)}
    matmul -= _own_parameters(model, lambda module: not multiplies(module) and module not in tables)
    kept = matmul | {id(module.weight) for module in tables}
    for parameter in model.parameters():
        if parameter.is_floating_point():
            frozen = id(parameter) in kept and not parameter.requires_grad
            parameter.data = parameter.data.to(frozen_dtype if frozen else torch.float32)
    for module in tables:
        if module not in scaled and _rows_in_float32 not in module._forward_hooks.values():
            module.register_forward_hook(_rows_in_float32)


def _own_parameters(model: nn.Module, chosen: Callable[[nn.Module], bool]) -> set[int]:
    return {id(p) for module in model.modules() if chosen(module) for p in module.parameters(recurse=False)}


def _rows_in_float32(module: nn.Module, inputs: Any, rows: Tensor) -> Tensor:
    """A forward hook of an embedding table: hidden states begin in float32, as they do where the table is
    stored in it."""
    return rows.float()


def trains_in_half_precision(parameters: list[Tensor]) -> bool:
    """Whether weights are trained in a 16-bit type, whose rounding loses small updates."""
    return any(p.dtype in (torch.bfloat16, torch.float16) for p in parameters)
