"""The policy's weights under the names of a transformers checkpoint, adapters folded in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def named_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """(checkpoint name, tensor) of every parameter, one at a time; tied heads are left out, LoRA deltas added to a copy of their layer's weight.

    Other tensors are the policy's own memory: copy them before the next optimizer step (or before the policy's `whole` ends).
    """
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    deltas = {f"{name}.base_layer.weight": module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}
    for name, parameter in model.named_parameters():
        if "lora_" in name or "modules_to_save.default" in name:
            continue
        weight = parameter.data
        if name in deltas:
            layer = deltas[name]
            for adapter in () if layer.disable_adapters or layer.merged else layer.active_adapters:
                weight = weight.float() + layer.get_delta_weight(adapter).float()  # the engine rounds the sum, once
        plain = name.removeprefix("base_model.model.").replace(".base_layer.", ".").replace(".original_module.", ".")
        if plain not in tied:
            yield plain, weight
