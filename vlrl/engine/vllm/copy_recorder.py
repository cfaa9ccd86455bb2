"""Records what vLLM's loaders copy whole weights into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class CopyRecorder(TorchDispatchMode):
    """Inside, `copies` collects by name what whole weights, found by their address, are copied into."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.name_at = {weight.data_ptr(): name for name, weight in weights.items()}
        self.copies: dict[str, list[Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and (name := self.name_at.get(args[1].data_ptr())):
            self.copies.setdefault(name, []).append(args[0])
        return func(*args, **(kwargs or {}))
