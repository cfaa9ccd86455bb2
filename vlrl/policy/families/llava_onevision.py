"""LLaVA-OneVision: a single image as tiles (anyres), each of several images or video frames as one tile; a
Qwen2 language model.

Source: LLaVA-OneVision, arXiv:2408.03326, sec. 3.2 and fig. 3 (visual representations of the three cases).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.encoded import Features, MediaEmbeds
from vlrl.policy.families.vision import Units, VisionFamily, decoded_image
from vlrl.policy.family import pooled_output
from vlrl.policy.tiny import TEMPLATE, Tiny, qwen_tokenizer
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import Media

CHAT_TEMPLATE = TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>\n").replace(
    "<|vision_start|><|video_pad|><|vision_end|>", "<video>\n"
)


@register("llava_onevision")
@dataclass(frozen=True, kw_only=True)
class LlavaOneVision(VisionFamily):
    """LLaVA-OneVision checkpoints whose names end in "-hf". Coordinates are fractions of the image's width
    and height."""

    units: ClassVar[Units] = "unit"
    multi_image_sensitive: ClassVar[bool] = True
    image_token: ClassVar[str] = "<image>"
    video_token: ClassVar[str] = "<video>"
    tower_inputs: ClassVar[dict[str, tuple[str, ...]]] = {
        "image": ("pixel_values", "image_sizes", "batch_num_images"),
        "video": ("pixel_values_videos",),
    }

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        from transformers import (
            LlavaOnevisionConfig,
            LlavaOnevisionForConditionalGeneration,
            LlavaOnevisionImageProcessor,
            LlavaOnevisionProcessor,
            LlavaOnevisionVideoProcessor,
        )

        tokenizer = qwen_tokenizer(
            tiny.vocabulary,
            template=CHAT_TEMPLATE,
            extra_special_tokens={"image_token": "<image>", "video_token": "<video>"},
        )
        side = 4 * tiny.patch
        grid = [[side, side], [side, 2 * side], [2 * side, side], [2 * side, 2 * side]]
        image = LlavaOnevisionImageProcessor(size={"height": side, "width": side}, image_grid_pinpoints=grid)
        video = LlavaOnevisionVideoProcessor(size={"height": side, "width": side})
        options = {
            "num_image_tokens": 16,
            "vision_feature_select_strategy": "full",
            "chat_template": CHAT_TEMPLATE,
        }
        processor = LlavaOnevisionProcessor(image, tokenizer, video, **options)
        vision = {
            "model_type": "siglip_vision_model",
            "hidden_size": tiny.vision_hidden,
            "num_hidden_layers": tiny.vision_layers,
            "num_attention_heads": tiny.vision_heads,
            "intermediate_size": 2 * tiny.vision_hidden,
            "image_size": side,
            "patch_size": tiny.patch,
            "vision_use_head": False,
        }
        ids = {
            f"{kind}_token_index": tokenizer.convert_tokens_to_ids(f"<{kind}>") for kind in ("image", "video")
        }
        config = LlavaOnevisionConfig(
            vision_config=vision,
            text_config=tiny.text(tokenizer) | {"model_type": "qwen2"},
            image_grid_pinpoints=grid,
            tie_word_embeddings=tiny.tie,
            **ids,
        )
        return self.random_model(LlavaOnevisionForConditionalGeneration, config), processor

    def process_image(self, processor: Any, medium: Media, single_image: bool) -> Features:
        if single_image:
            return super().process_image(processor, medium, single_image)
        image = decoded_image(medium)
        out = processor(
            text=[self.image_token * 2],
            images=[[image, image]],
            add_special_tokens=False,
            return_tensors="pt",
        )
        half = {
            name: value[:1] for name, value in out.items()
        }  # the processor's output for the first of two equal images
        half["input_ids"] = out["input_ids"][:, : out["input_ids"].shape[1] // 2]
        half["batch_num_images"] = torch.tensor([2])
        return self.to_features(processor, medium, half, image.size)

    def processor_batch(self, media: list[Any]) -> list[Any]:
        return [media]

    def resized_size(
        self, processor: Any, tensors: dict[str, Tensor], kind: str, original: tuple[int, int]
    ) -> tuple[int, int]:
        return original  # coordinates are fractions of width and height: the tiles' size does not matter

    def encoder_outputs(self, model: nn.Module, kind: str, embeds: Sequence[MediaEmbeds]) -> Any:
        parts = tuple(e.embeds_NH for e in embeds)
        return pooled_output(parts if kind == "image" else torch.cat(parts)[None])
