"""Qwen3-VL: interleaved M-RoPE, timestamps as text between video frames, vision features also added to the
first language layers (DeepStack).

Source: Qwen3-VL technical report, arXiv:2511.21631; coordinates are thousandths of width and height.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.costs import DECODER_QK_NORM, SavedTensors
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
    processor_class: ClassVar[str] = "Qwen3VLProcessor"
    video_class: ClassVar[str] = "Qwen3VLVideoProcessor"
    position_inputs: ClassVar[tuple[str, ...]] = ()
    saved_tensors: ClassVar[Mapping[str, SavedTensors]] = {
        "qwen3_vl_text": DECODER_QK_NORM,
        "qwen3_vl_vision": SavedTensors(
            hidden=5, hidden_float=0, hidden_cast=5, inner=2, statistics=4, fused=True, float_residual=False
        ),
    }

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

        processor, vision, fields = self.tiny_parts(tiny)
        vision |= {
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": list(range(tiny.vision_layers))[:2],
        }
        text = tiny.text(processor.tokenizer) | {
            "rope_parameters": tiny.mrope() | {"mrope_interleaved": True},
            "head_dim": tiny.hidden // tiny.heads,
        }
        config = Qwen3VLConfig(text_config=text, vision_config=vision, **fields)
        return self.random_model(Qwen3VLForConditionalGeneration, config), processor

    def limit_frame(self, part: Any) -> None:
        """The processor's size bounds a whole video here, over all its frames; a frame is bounded by its
        largest number of tokens."""
        if self.video_max_pixels is not None:
            unit = (part.patch_size * part.merge_size) ** 2
            shortest = min(self.limited_size(part, "video_max_pixels")["shortest_edge"], unit)
            part.size = type(part.size)(**dict(part.size) | {"shortest_edge": shortest})
            part.cap_pixels_per_frame, part.max_video_tokens = True, self.video_max_pixels // unit

    def encoder_outputs(self, model: nn.Module, kind: str, embeds: Sequence[MediaEmbeds]) -> Any:
        from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

        deep: Any = [tuple(layer) for layer in zip(*(e.deep for e in embeds))]
        pooled: Any = tuple(e.embeds_NH for e in embeds)
        return BaseModelOutputWithDeepstackFeatures(pooler_output=pooled, deepstack_features=deep)
