"""Gemma 4: pictures at their own proportions in a fixed budget of patches, pooled 3 x 3; full-attention
layers with larger heads, token embeddings in every layer, later layers that read the keys of earlier ones.

Source: transformers 5.19, models/gemma4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import ConfigError, register
from vlrl.policy.costs import PictureCost
from vlrl.policy.encoded import Features
from vlrl.policy.families.vision import Units, VisionFamily
from vlrl.policy.tiny import Tiny, media_template

BUDGETS = (70, 140, 280, 560, 1120)  # embeddings of a picture


@register("gemma4")
@dataclass(frozen=True, kw_only=True)
class Gemma4(VisionFamily):
    """Gemma 4 E2B and E4B, whose pictures are read causally, without audio; the larger ones are refused.
    Coordinates are thousandths of width and height."""

    transformers_name: ClassVar[str] = "Gemma4"
    no_sequence_parallel: ClassVar[str] = "has layers that read the keys of earlier ones"
    units: ClassVar[Units] = "per_mille"
    image_token: ClassVar[str] = "<|image|>"
    video_token: ClassVar[str] = "<|video|>"
    prompt_only_tokens: ClassVar[tuple[str, ...]] = (
        "<|image>", "<image|>", "<|audio|>", "<|audio>", "<audio|>"
    )  # fmt: skip
    tower_inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "image": ("pixel_values", "image_position_ids"),
        "video": ("pixel_values_videos", "video_position_ids", "num_frames_per_video"),
    }
    template: ClassVar[str] = media_template("<|image|>", "<|video|>")
    extra_tokens: ClassVar[Mapping[str, str]] = {
        "image_token": "<|image|>",
        "boi_token": "<|image>",
        "eoi_token": "<image|>",
        "audio_token": "<|audio|>",
        "boa_token": "<|audio>",
        "eoa_token": "<audio|>",
        "video_token": "<|video|>",
    }
    config_tokens: ClassVar[Mapping[str, str]] = {
        "image_token_id": "<|image|>",
        "video_token_id": "<|video|>",
        "audio_token_id": "<|audio|>",
        "boi_token_id": "<|image>",
        "eoi_token_id": "<image|>",
        "boa_token_id": "<|audio>",
        "eoa_token_index": "<audio|>",
    }

    def make_processor(self, tokenizer: Any, sizes: Mapping[str, int]) -> Any:
        import transformers

        part = {"patch_size": sizes["patch"]}
        return transformers.Gemma4Processor(
            transformers.Gemma4AudioFeatureExtractor(),
            transformers.Gemma4ImageProcessor(**part, max_soft_tokens=sizes["tokens"]),
            tokenizer,
            transformers.Gemma4VideoProcessor(**part),
            chat_template=self.template,
            image_seq_length=sizes["tokens"],
        )

    def tiny_sizes(self, tiny: Tiny) -> Mapping[str, int]:
        return {"patch": tiny.patch, "tokens": BUDGETS[0]}

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        size, sharing = tiny.hidden // tiny.heads, tiny.layers - 2
        return {
            "head_dim": size,
            "global_head_dim": 2 * size,
            "sliding_window": 8,
            "layer_types": ["full_attention" if i % 2 else "sliding_attention" for i in range(tiny.layers)],
            "num_kv_shared_layers": max(0, sharing),
            "hidden_size_per_layer_input": size,
            "vocab_size_per_layer_input": tiny.text(self.tiny_tokenizer(tiny))["vocab_size"],
        }

    def tiny_vision(self, tiny: Tiny) -> Mapping[str, Any]:
        size = {"head_dim": tiny.vision_hidden // tiny.vision_heads, "position_embedding_size": 1024}
        return tiny.tower() | {"num_key_value_heads": tiny.vision_heads, **size}

    def limit_image(self, part: Any, config: Any) -> None:
        """Pictures of any size are brought to nearly the same number of pixels: 9 patches per embedding."""
        if config.get_text_config().use_bidirectional_attention:
            raise ConfigError(
                f"policy.model: pictures of {self.model!r} are read in both directions, in sliding layers "
                "alone, which no layout here does; use Gemma 4 E2B or E4B, or Gemma 3"
            )
        each = 9 * part.patch_size**2
        if self.max_pixels is not None:
            allowed = [budget for budget in BUDGETS if budget * each <= self.max_pixels]
            if not allowed:
                least = BUDGETS[0] * each
                self.refuse_pixels("max_pixels", f"{self.name!r} shows its tower up to {least} pixels")
            part.max_soft_tokens = min(allowed[-1], part.max_soft_tokens)
        if (self.min_pixels or 0) > each:
            self.refuse_pixels("min_pixels", "narrow pictures have fewer; raise max_pixels, or leave it out")

    def limit_frame(self, part: Any) -> None:
        if self.video_max_pixels is not None:
            allowed = [b for b in BUDGETS if b * 9 * part.patch_size**2 <= self.video_max_pixels]
            if not allowed:
                least = BUDGETS[0] * 9 * part.patch_size**2
                self.refuse_pixels(
                    "video_max_pixels", f"frames have up to {least} pixels; give at least that"
                )
            part.max_soft_tokens = min(allowed[-1], part.max_soft_tokens)

    def pixels_seen(self, processor: Any, features: Features) -> int:
        real = (features.tensors["image_position_ids"] != -1).all(-1)
        return int(real.sum()) * processor.image_processor.patch_size**2

    def picture_cost(self, processor: Any, config: Any, width: int, height: int) -> PictureCost:
        part = processor.image_processor
        options = {"patch_size": part.patch_size, "max_soft_tokens": part.max_soft_tokens}
        found = processor._get_num_multimodal_tokens(image_sizes=[(height, width)], **options)
        patches = 9 * part.max_soft_tokens
        return PictureCost(found.num_image_tokens[0], patches, patches)
