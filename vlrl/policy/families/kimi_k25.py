"""Kimi K2.5: MoonViT at the picture's own size; a DeepSeek-V3 language model (latent attention, mixture of
experts).

Source: Kimi-VL, arXiv:2504.07491, sec. 2.1; Kimi K2.5, arXiv:2602.02276.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.families.qwen2_5_vl import QwenVL
from vlrl.policy.families.vision import Units
from vlrl.policy.family import Family
from vlrl.policy.tiny import Tiny, media_template

_MEDIUM = "<|media_begin|>{}<|media_content|>{}<|media_end|>"
VIDEO = "<|kimi_k25_video_placeholder|>"


@register("kimi_k25")
@dataclass(frozen=True, kw_only=True)
class KimiK25(QwenVL):
    """Kimi K2.5. Coordinates are fractions of width and height. No video: transformers 5.19 pools frames over
    time and then splits them as if it had not."""

    transformers_name: ClassVar[str] = "Kimi_K25"
    no_sequence_parallel: ClassVar[str] = "compresses its keys (latent attention)"
    units: ClassVar[Units] = "unit"
    image_token: ClassVar[str] = "<|media_pad|>"
    video_token: ClassVar[str] = ""
    prompt_only_tokens: ClassVar[tuple[str, ...]] = ("<|media_begin|>", "<|media_content|>", "<|media_end|>")
    position_inputs: ClassVar[tuple[str, ...]] = ()
    template: ClassVar[str] = media_template(_MEDIUM.format("image", "<|media_pad|>"), VIDEO)
    extra_tokens: ClassVar[Mapping[str, str]] = {
        "image_token": "<|media_pad|>",
        "video_token": VIDEO,
        "begin_token": "<|media_begin|>",
        "content_token": "<|media_content|>",
        "end_token": "<|media_end|>",
    }
    config_tokens: ClassVar[Mapping[str, str]] = {
        "image_token_id": "<|media_pad|>",
        "video_token_id": VIDEO,
        "vision_start_token_id": "<|media_begin|>",
        "vision_end_token_id": "<|media_end|>",
    }

    def make_processor(self, tokenizer: Any, sizes: Mapping[str, int]) -> Any:
        from transformers import Kimi_K25ImageProcessor, Kimi_K25Processor, Kimi_K25VideoProcessor

        part = {"patch_size": sizes["patch"], "merge_size": sizes["merge"]}
        image = Kimi_K25ImageProcessor(**part, max_patches=sizes["max_patches"])
        video = Kimi_K25VideoProcessor(**part)
        return Kimi_K25Processor(image, tokenizer, video, chat_template=self.template)

    def tiny_sizes(self, tiny: Tiny) -> Mapping[str, int]:
        return {"patch": tiny.patch, "merge": 2, "max_patches": 4096}

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        size, mixture = tiny.hidden // tiny.heads, tiny.mixture()
        return {
            "model_type": "deepseek_v3",
            "num_key_value_heads": tiny.heads,
            "q_lora_rank": 2 * size,
            "kv_lora_rank": size,
            "qk_rope_head_dim": size,
            "qk_nope_head_dim": size,
            "v_head_dim": size,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "n_routed_experts": mixture["num_experts"],
            "num_experts_per_tok": mixture["num_experts_per_tok"],
            "moe_intermediate_size": mixture["moe_intermediate_size"],
        }

    def tiny_vision(self, tiny: Tiny) -> Mapping[str, Any]:
        return tiny.tower() | {"pos_emb_height": 8, "pos_emb_width": 8}

    def tiny_fields(self, tiny: Tiny) -> Mapping[str, Any]:
        return {"projection_hidden_size": tiny.vision_hidden}

    def limit_image(self, part: Any, config: Any) -> None:
        """Large pictures shrink to `max_patches`, then both sides are filled up to a multiple of one unit."""
        unit = part.patch_size * part.merge_size
        if (self.min_pixels or 0) > unit**2:
            self.refuse_pixels(
                "min_pixels", f"{self.name!r} enlarges no picture; give at most {unit**2}, or leave it out"
            )
        if self.max_pixels is not None:
            if self.max_pixels < 4 * unit**2:
                self.refuse_pixels("max_pixels", f"{self.name!r} shows its tower {4 * unit**2} or more")
            side = (math.isqrt(self.max_pixels) - unit) // part.patch_size
            part.max_patches = min(part.max_patches, side**2)

    positions = Family.positions  # one axis
