"""Qwen3-VL: interleaved M-RoPE, timestamps as text between video frames, vision features also added to the
first language layers (DeepStack).

Source: Qwen3-VL technical report, arXiv:2511.21631; coordinates are thousandths of width and height.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.encoded import MediaEmbeds
from vlrl.policy.families.qwen2_5_vl import QwenVL
from vlrl.policy.families.vision import Units
from vlrl.policy.tiny import Tiny
from vlrl.services.lazy import nn


@register("qwen3_vl")
@dataclass(frozen=True, kw_only=True)
class Qwen3VL(QwenVL):
    """Qwen3-VL (2B, 4B, 8B, 32B). Coordinates are thousandths of width and height."""

    units: ClassVar[Units] = "per_mille"
    position_inputs: ClassVar[tuple[str, ...]] = ()

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        from transformers import (
            Qwen2VLImageProcessor,
            Qwen3VLConfig,
            Qwen3VLForConditionalGeneration,
            Qwen3VLProcessor,
            Qwen3VLVideoProcessor,
        )

        processor = self.tiny_processor(tiny, Qwen3VLProcessor, Qwen2VLImageProcessor, Qwen3VLVideoProcessor)
        vision = {
            "depth": tiny.vision_layers,
            "hidden_size": tiny.vision_hidden,
            "intermediate_size": 2 * tiny.vision_hidden,
            "num_heads": tiny.vision_heads,
            "patch_size": tiny.patch,
            "out_hidden_size": tiny.hidden,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": list(range(tiny.vision_layers))[:2],
            "initializer_range": tiny.std,
        }
        rope = tiny.mrope() | {"mrope_interleaved": True}
        text = tiny.text(processor.tokenizer) | {
            "rope_parameters": rope,
            "head_dim": tiny.hidden // tiny.heads,
        }
        config = Qwen3VLConfig(
            text_config=text,
            vision_config=vision,
            tie_word_embeddings=tiny.tie,
            **self.tiny_ids(processor.tokenizer),
        )
        return self.random_model(Qwen3VLForConditionalGeneration, config), processor

    def encoder_outputs(self, model: nn.Module, kind: str, embeds: Sequence[MediaEmbeds]) -> Any:
        from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

        deep: Any = [tuple(layer) for layer in zip(*(e.deep for e in embeds))]
        pooled: Any = tuple(e.embeds_NH for e in embeds)
        return BaseModelOutputWithDeepstackFeatures(pooler_output=pooled, deepstack_features=deep)
