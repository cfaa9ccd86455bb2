"""The names of weights in released checkpoints, where transformers 5 has dropped a level of them.

transformers 5 holds the vision towers of Gemma 3 and LLaVA-OneVision as `vision_tower.encoder`; their
checkpoints, and vLLM, have `vision_tower.vision_model.encoder`. A model that transformers loaded is saved
under the checkpoint's names, one that was built from a config is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vlrl.policy.family import base


def dropped_levels(model: Any) -> list[Any]:
    """transformers' rules (`PrefixChange`) that drop or add a level within a part of the model, such as its
    tower."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange

    rules = get_model_conversion_mapping(base(model), add_legacy=False)
    return [rule for rule in rules if isinstance(rule, PrefixChange) and rule.scope_prefix]


def checkpoint_name(model: Any) -> Callable[[str], str]:
    """The function from a parameter's name to the same with the levels of the released checkpoint."""
    rules = [rule.reverse_transform() for rule in dropped_levels(model)][::-1]

    def name_of(name: str) -> str:
        for rule in rules:
            name, _ = rule.rename_source_key(name)
        return name

    return name_of


def save_as_released(model: Any) -> Any:
    """Let a model that was built from a config be saved under the names of the released checkpoints. Returns
    it."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange

    if dropped_levels(model):
        rules = get_model_conversion_mapping(model, add_legacy=False)
        model._weight_conversions = [
            rule for rule in rules if rule.scope_prefix or not isinstance(rule, PrefixChange)
        ]
    return model
