"""The policy's weights under the names of a transformers checkpoint, adapters merged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def merged(model: Any) -> Iterator[None]:
    """PEFT adapters folded into the weights for the duration; nothing for a plain model."""
    folds = hasattr(model, "merge_adapter")
    if folds:
        model.merge_adapter()
    try:
        yield
    finally:
        if folds:
            model.unmerge_adapter()


@torch.no_grad()
def named_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """(checkpoint name, tensor) of every parameter, one at a time; tied heads are left out.

    The tensors are the policy's own memory: copy them before the next optimizer step, or before `merged` (or the policy's `whole`) ends.
    """
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    for name, parameter in model.named_parameters():
        if "lora_" in name or "modules_to_save.default" in name:
            continue
        name = name.removeprefix("base_model.model.").replace(".base_layer.", ".").replace(".original_module.", ".")
        if name in tied:
            continue
        yield name, parameter.data
