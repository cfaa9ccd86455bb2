"""LFM2-VL: SigLIP 2 at the picture's own size, large pictures as tiles; a language model of short
convolutions and attention.

Source: LFM2 technical report, arXiv:2511.23404, sec. 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.costs import PictureCost
from vlrl.policy.encoded import Features
from vlrl.policy.families.vision import Units, VisionFamily
from vlrl.policy.tiny import Tiny, media_template

SIDE_TILES = 10  # the tokenizer has a token for each tile of at most so many rows and columns
TILES = tuple(f"<|img_row_{i}_col_{j}|>" for i in range(1, 1 + SIDE_TILES) for j in range(1, 1 + SIDE_TILES))


@register("lfm2_vl")
@dataclass(frozen=True, kw_only=True)
class Lfm2VL(VisionFamily):
    """LFM2-VL (450M, 1.6B, 3B). The models define no coordinate convention: fractions of width and height are
    assumed. No video."""

    transformers_name: ClassVar[str] = "Lfm2Vl"
    no_sequence_parallel: ClassVar[str] = "has convolutions, which need earlier tokens"
    units: ClassVar[Units] = "unit"
    image_token: ClassVar[str] = "<image>"
    prompt_only_tokens: ClassVar[tuple[str, ...]] = (
        "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", *TILES
    )  # fmt: skip
    tower_inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "image": ("pixel_values", "spatial_shapes", "pixel_attention_mask")
    }
    template: ClassVar[str] = media_template("<image>")
    extra_tokens: ClassVar[Mapping[str, str]] = {
        "image_token": "<image>",
        "image_start_token": "<|image_start|>",
        "image_end_token": "<|image_end|>",
        "image_thumbnail": "<|img_thumbnail|>",
    }
    config_tokens: ClassVar[Mapping[str, str]] = {"image_token_id": "<image>"}

    def make_processor(self, tokenizer: Any, sizes: Mapping[str, int]) -> Any:
        from transformers import Lfm2VlImageProcessor, Lfm2VlProcessor

        image = Lfm2VlImageProcessor(
            encoder_patch_size=sizes["patch"],
            tile_size=sizes["side"],
            max_tiles=sizes["max_tiles"],
            min_image_tokens=sizes["min_tokens"],
            max_image_tokens=sizes["max_tokens"],
        )
        return Lfm2VlProcessor(image, tokenizer, chat_template=self.template)

    def tiny_sizes(self, tiny: Tiny) -> Mapping[str, int]:
        tokens = {"min_tokens": 1, "max_tokens": 16}
        return {"patch": tiny.patch, "side": 8 * tiny.patch, "max_tiles": 4, **tokens}

    def tiny_tokenizer(self, tiny: Tiny) -> Any:
        tokenizer = super().tiny_tokenizer(tiny)
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *TILES]})
        return tokenizer

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        kinds = tiny.delta_rule()["layer_types"]
        layers = [kind if kind == "full_attention" else "conv" for kind in kinds]
        return {"model_type": "lfm2", "layer_types": layers, "block_auto_adjust_ff_dim": False}

    def tiny_vision(self, tiny: Tiny) -> Mapping[str, Any]:
        return tiny.tower() | {"num_patches": 64, "model_type": "siglip2_vision_model"}

    def limit_image(self, part: Any, config: Any) -> None:
        """A picture is one tile of `min_image_tokens` to `max_image_tokens`, a larger one is cut into tiles
        and has the whole picture beside them."""
        unit, tile = (part.encoder_patch_size * part.downsample_factor) ** 2, part.tile_size**2
        if self.max_pixels is not None:
            if self.max_pixels < unit:
                self.refuse_pixels("max_pixels", f"{self.name!r} shows its tower {unit} pixels or more")
            part.max_tiles = min(part.max_tiles, (self.max_pixels - part.max_image_tokens * unit) // tile)
            if part.max_tiles < part.min_tiles:
                part.do_image_splitting, part.max_tiles = False, part.min_tiles
                part.max_image_tokens = min(part.max_image_tokens, self.max_pixels // unit)
        least = max(part.min_image_tokens, math.ceil((self.min_pixels or 0) / unit))
        if self.min_pixels is not None and least > part.max_image_tokens:
            most = part.max_image_tokens * unit
            self.refuse_pixels("min_pixels", f"a picture has at most {most} pixels; give at most {most}")
        part.min_image_tokens = min(least, part.max_image_tokens)

    def pixels_seen(self, processor: Any, features: Features) -> int:
        patch = processor.image_processor.encoder_patch_size
        return int(features.tensors["spatial_shapes"].prod(-1).sum()) * patch**2

    def picture_cost(self, processor: Any, config: Any, width: int, height: int) -> PictureCost:
        part = processor.image_processor
        sizes = {"downsample_factor": part.downsample_factor, "encoder_patch_size": part.encoder_patch_size}
        most = {"max_image_tokens": part.max_image_tokens}
        columns, rows = part.smart_resize(
            height, width, min_image_tokens=part.min_image_tokens, **most, **sizes
        )
        whole = (columns // part.encoder_patch_size) * (rows // part.encoder_patch_size)
        tolerance = {"max_pixels_tolerance": part.max_pixels_tolerance}
        patches = whole
        if part.do_image_splitting and part._is_image_too_large(height, width, **most, **tolerance, **sizes):
            *_, tiles = part._get_grid_layout(height, width, part.min_tiles, part.max_tiles, part.tile_size)
            patches += tiles * (part.tile_size // part.encoder_patch_size) ** 2
        return PictureCost(patches // part.downsample_factor**2, patches, max(whole, patches - whole))
