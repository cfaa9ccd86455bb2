"""Qwen2-VL: M-RoPE with unscaled time, full attention in the vision tower, boxes in thousandths of width and
height.

Source: Qwen2-VL, arXiv:2409.12191 (M-RoPE, sec. 2.1; boxes normalised to [0, 1000), sec. 2.2.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.costs import SavedTensors
from vlrl.policy.families.qwen2_5_vl import QwenVL
from vlrl.policy.families.vision import Units
from vlrl.policy.tiny import Tiny


@register("qwen2_vl")
@dataclass(frozen=True, kw_only=True)
class Qwen2VL(QwenVL):
    """Qwen2-VL (2B, 7B, 72B). Coordinates are thousandths of width and height."""

    units: ClassVar[Units] = "per_mille"
    processor_class: ClassVar[str] = "Qwen2VLProcessor"
    saved_tensors: ClassVar[Mapping[str, SavedTensors]] = {
        "qwen2_vl_vision": SavedTensors(
            hidden=5, hidden_float=0, hidden_cast=5, inner=3, statistics=4, fused=True, float_residual=False
        )
    }

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

        processor, vision, fields = self.tiny_parts(tiny)
        del vision["intermediate_size"], vision["out_hidden_size"]
        vision |= {"embed_dim": tiny.vision_hidden, "hidden_size": tiny.hidden, "mlp_ratio": 2}
        text = tiny.text(processor.tokenizer) | {"rope_parameters": tiny.mrope()}
        config = Qwen2VLConfig(text_config=text, vision_config=vision, **fields)
        return self.random_model(Qwen2VLForConditionalGeneration, config), processor
