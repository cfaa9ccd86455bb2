"""Mixed precision: what is trained is kept in float32, matrix products are taken in the policy's own type.

A bfloat16 has 8 significant bits: an update below 1/512 of a weight, which is every update at a learning rate of 1e-6, would be rounded away.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from vlrl.policy.family import DTYPES, Family

PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def cast(model: nn.Module, dtype: torch.dtype) -> None:
    """All weights in one type; buffers stay as they are (rotary frequencies in bfloat16 are wrong from a few hundred positions on)."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)


def settle(model: nn.Module, dtype: torch.dtype) -> None:
    """Float32 for all weights but the frozen ones of matrix products, which take `dtype`: autocast would round them so in any case.

    Which weights are frozen thus changes no result. Quantised weights stay as they are.
    """
    elsewhere = {id(p) for module in model.modules() if not isinstance(module, PRODUCTS) for p in module.parameters(recurse=False)}
    products = {id(p) for module in model.modules() if isinstance(module, PRODUCTS) for p in module.parameters(recurse=False)} - elsewhere
    for parameter in model.parameters():
        if parameter.is_floating_point():
            frozen = id(parameter) in products and not parameter.requires_grad
            parameter.data = parameter.data.to(dtype if frozen else torch.float32)


def computing(device: torch.device, dtype: torch.dtype) -> AbstractContextManager:
    """Matrix products in `dtype`, sums and norms in float32."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


def lost_updates(parameters: list[Tensor]) -> bool:
    """Whether weights are trained in a type whose rounding swallows small updates."""
    return any(p.dtype in (torch.bfloat16, torch.float16) for p in parameters)


class Mixed:
    """The precision of a policy."""

    model: Any
    family: Family
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        """What matrix products are taken in."""
        return DTYPES[self.family.dtype]

    def computing(self) -> AbstractContextManager:
        """Around forwards: matrix products in `dtype`, whatever the weights are kept in."""
        return computing(self.device, self.dtype)

    def settle(self, alike: bool = False) -> None:
        """Keep what is trained (by `requires_grad`) in float32, the rest in `dtype` (`alike`: in float32 too). Before the optimizer is made."""
        if self.family.masters and self.dtype != torch.float32:
            settle(self.model, torch.float32 if alike else self.dtype)
