"""The experts of a mixture, whose weights are one tensor (experts, out, in) a layer: their products in the
type of autocast.

Autocast casts what linear layers multiply. The grouped products of transformers run in the type that the
weights have, so that float32 master weights would make them float32 products: 8 to 16 times slower on a GPU,
and other numbers than those of an engine in bfloat16.
"""

from __future__ import annotations

from typing import Any

from vlrl.policy.mixins import mix_in
from vlrl.services.lazy import Tensor, nn, torch


def is_experts(module: nn.Module) -> bool:
    """Whether a module holds all experts of a layer (transformers' `use_experts_implementation` marks it)."""
    return hasattr(module, "_is_expert_parallel")


def has_experts(model: nn.Module) -> bool:
    """Whether a model is a mixture of experts."""
    return any(map(is_experts, model.modules()))


def install(model: nn.Module) -> None:
    """Let the experts of a model multiply in the type of autocast; once is enough."""
    for module in model.modules():
        if is_experts(module):
            mix_in(module, _Experts)


class _Experts:
    """Mixed into transformers' experts. `adapted`: an adapter's numbers, which may be far smaller than the
    weights, are added to them, so that they multiply in float32, with the adapter and without."""

    adapted = False

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The mixed outputs of the chosen experts, shape and type of `hidden_states`."""
        module: Any = self
        layer: Any = super()
        device = hidden_states.device.type
        if self.adapted or not torch.is_autocast_enabled(device):
            return layer.forward(hidden_states, *args, **kwargs)
        cast: Any = _Cast(module, torch.get_autocast_dtype(device))
        return layer.forward.__func__(cast, hidden_states, *args, **kwargs)


class _Cast:
    """A module whose weights have another type. No weight is written into the module: two threads may run
    it."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._module, self._dtype = module, dtype

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        is_weight = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(self._dtype) if is_weight else value
