"""LLaVA-OneVision: a single image as tiles (anyres), each of several images or video frames as one tile; a
Qwen2 language model.

Source: LLaVA-OneVision, arXiv:2408.03326, sec. 3.2 and fig. 3 (visual representations of the three cases).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.encoded import Features, MediaEmbeds
from vlrl.policy.families.vision import Units, VisionFamily, decoded_image
from vlrl.policy.family import pooled_output
from vlrl.policy.tiny import Tiny, media_template, qwen_tokenizer
from vlrl.services.lazy import nn, torch
from vlrl.types import Media

CHAT_TEMPLATE = media_template("<image>\n", "<video>\n")


@register("llava_onevision")
@dataclass(frozen=True, kw_only=True)
class LlavaOneVision(VisionFamily):
    """LLaVA-OneVision checkpoints whose names end in "-hf". Coordinates are fractions of the image's width
    and height."""

    units: ClassVar[Units] = "unit"
    multi_image_sensitive: ClassVar[bool] = True
    image_token: ClassVar[str] = "<image>"
    video_token: ClassVar[str] = "<video>"
    tower_inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "image": ("pixel_values", "image_sizes", "batch_num_images"),
        "video": ("pixel_values_videos",),
    }

    def make_processor(self, tokenizer: Any, sizes: Mapping[str, int]) -> Any:
        from transformers import (
            LlavaOnevisionImageProcessor,
            LlavaOnevisionProcessor,
            LlavaOnevisionVideoProcessor,
        )

        side, most = sizes["side"], range(1, sizes["max_side_tiles"] + 1)
        size, grid = (
            {"height": side, "width": side},
            [[rows * side, columns * side] for rows in most for columns in most],
        )
        return LlavaOnevisionProcessor(
            LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=grid),
            tokenizer,
            LlavaOnevisionVideoProcessor(size=size),
            num_image_tokens=sizes["tokens"],
            vision_feature_select_strategy="full",
            chat_template=CHAT_TEMPLATE,
        )

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

        special = {"image_token": "<image>", "video_token": "<video>"}
        tokenizer = qwen_tokenizer(tiny.vocabulary, template=CHAT_TEMPLATE, extra_special_tokens=special)
        processor = self.make_processor(
            tokenizer, {"side": 4 * tiny.patch, "tokens": 16, "max_side_tiles": 2}
        )
        vision = {
            "model_type": "siglip_vision_model",
            "image_size": 4 * tiny.patch,
            "vision_use_head": False,
        }
        ids = {
            f"{kind}_token_index": tokenizer.convert_tokens_to_ids(f"<{kind}>") for kind in ("image", "video")
        }
        config = LlavaOnevisionConfig(
            vision_config=tiny.tower() | vision,
            text_config=tiny.text(tokenizer) | {"model_type": "qwen2"},
            image_grid_pinpoints=processor.image_processor.image_grid_pinpoints,
            tie_word_embeddings=tiny.tie,
            **ids,
        )
        return self.random_model(LlavaOnevisionForConditionalGeneration, config), processor

    def limit_image(self, part: Any, config: Any) -> None:
        """A single picture is cut by the grid that fits it best, with the whole picture beside it; the model
        reads the grids from its config. Each of several pictures is one tile, so no larger minimum can be
        kept."""
        side = part.size["height"]
        least, most = self.tile_bounds(side, fewest=2)
        if least > 1:
            self.refuse_pixels(
                "min_pixels", f"each of several pictures has {side} x {side} pixels; give at most {side**2}"
            )
        grids = [list(grid) for grid in part.image_grid_pinpoints]
        allowed = [grid for grid in grids if grid[0] * grid[1] // side**2 + 1 <= most]
        if len(allowed) < len(grids):
            part.image_grid_pinpoints = config.image_grid_pinpoints = allowed

    def count_tokens(self, processor: Any, config: Any, width: int, height: int) -> tuple[int, int]:
        from transformers.models.llava_onevision.modeling_llava_onevision import image_size_to_num_patches

        tokens, _ = super().count_tokens(processor, config, width, height)
        grids, side = processor.image_processor.image_grid_pinpoints, config.vision_config.image_size
        return tokens, image_size_to_num_patches((height, width), grids, side)

    def process_image(self, processor: Any, medium: Media, single_image: bool) -> Features:
        if single_image:
            return super().process_image(processor, medium, single_image)
        image = decoded_image(medium)
        text = [self.image_token * 2]
        out = processor(text=text, images=[[image, image]], add_special_tokens=False, return_tensors="pt")
        # the processor's output for the first of two equal images
        half = {name: value[:1] for name, value in out.items()}
        half["input_ids"] = out["input_ids"][:, : out["input_ids"].shape[1] // 2]
        half["batch_num_images"] = torch.tensor([2])
        return self.to_features(processor, medium, half, image.size)

    def processor_batch(self, media: list[Any]) -> list[Any]:
        return [media]

    def encoder_outputs(self, model: nn.Module, kind: str, embeds: Sequence[MediaEmbeds]) -> Any:
        parts = tuple(e.embeds_NH for e in embeds)
        return pooled_output(parts if kind == "image" else torch.cat(parts)[None])
