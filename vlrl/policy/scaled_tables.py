"""Embedding tables with a scale (Gemma): rows times sqrt(width).

The release rounds the scale to the type that it computes in, as vLLM does: in bfloat16 50.5 for sqrt(2560) =
50.596. A table of float32 master weights would not round it, and each hidden state would begin 0.2% larger
than the engine's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vlrl.policy.mixins import mix_in


def is_scaled(module: nn.Module) -> bool:
    """Whether a module is an embedding table with a scale."""
    return isinstance(module, nn.Embedding) and isinstance(getattr(module, "embed_scale", None), Tensor)


def install(model: nn.Module, dtype: torch.dtype) -> None:
    """Round the scales of a model's tables to the type of its products; once is enough."""
    for module in model.modules():
        if is_scaled(module):
            table: Any = module
            table.embed_scale = table.embed_scale.to(dtype).float()
            mix_in(table, _ScaledTable)


class _ScaledTable:
    """Mixed into transformers' tables. `in_float32`: rows are multiplied in it, so that hidden states begin
    in it and are the same for a table that is stored in 16 bits and one in float32."""

    in_float32 = False

    def forward(self, input_ids: Tensor) -> Tensor:
        """The scaled rows of `input_ids`."""
        table: Any = self
        rows = nn.Embedding.forward(table, input_ids)
        rows = rows.float() if self.in_float32 else rows
        return rows * table.embed_scale.to(rows.dtype)
