"""LLaVA-OneVision: a lone picture as tiles (anyres), several pictures or video frames as one tile each; a Qwen2 language model.

Source: LLaVA-OneVision, arXiv:2408.03326, sec. 3.2 and fig. 3 (visual representations of the three cases).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vlrl.policy.encoded import Features, Seen
from vlrl.policy.families._vision import VisionFamily
from vlrl.policy.tiny import TEMPLATE, Tiny, qwen_tokenizer
from vlrl.registry import register
from vlrl.types import Media

MARKS = TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>\n").replace(
    "<|vision_start|><|video_pad|><|vision_end|>", "<video>\n"
)


@register("llava_onevision")
@dataclass(frozen=True, kw_only=True)
class LlavaOneVision(VisionFamily):
    """LLaVA-OneVision checkpoints whose names end in "-hf". Coordinates are shares of the picture's sides."""

    units: ClassVar[str] = "unit"
    minds_company: ClassVar[bool] = True
    image_token: ClassVar[str] = "<image>"
    video_token: ClassVar[str] = "<video>"
    inputs: ClassVar[dict[str, tuple[str, ...]]] = {"image": ("pixel_values", "image_sizes", "batch_num_images"), "video": ("pixel_values_videos",)}

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        from transformers import (
            LlavaOnevisionConfig,
            LlavaOnevisionForConditionalGeneration,
            LlavaOnevisionImageProcessor,
            LlavaOnevisionProcessor,
            LlavaOnevisionVideoProcessor,
        )

        tokenizer = qwen_tokenizer(tiny.vocabulary, template=MARKS, extra_special_tokens={"image_token": "<image>", "video_token": "<video>"})
        side = 4 * tiny.patch
        grid = [[side, side], [side, 2 * side], [2 * side, side], [2 * side, 2 * side]]
        image = LlavaOnevisionImageProcessor(size={"height": side, "width": side}, image_grid_pinpoints=grid)
        video = LlavaOnevisionVideoProcessor(size={"height": side, "width": side})
        options = {"num_image_tokens": 16, "vision_feature_select_strategy": "full", "chat_template": MARKS}
        processor = LlavaOnevisionProcessor(image, tokenizer, video, **options)
        vision = {
            "model_type": "siglip_vision_model", "hidden_size": tiny.vision_hidden, "num_hidden_layers": tiny.vision_layers,
            "num_attention_heads": tiny.vision_heads, "intermediate_size": 2 * tiny.vision_hidden, "image_size": side, "patch_size": tiny.patch,
            "vision_use_head": False,
        }  # fmt: skip
        ids = {f"{kind}_token_index": tokenizer.convert_tokens_to_ids(f"<{kind}>") for kind in ("image", "video")}
        config = LlavaOnevisionConfig(vision_config=vision, text_config=tiny.text(tokenizer) | {"model_type": "qwen2"}, image_grid_pinpoints=grid,
                                      tie_word_embeddings=tiny.tie, **ids)  # fmt: skip
        return self.make(LlavaOnevisionForConditionalGeneration, config), processor

    def picture(self, processor: Any, medium: Media, alone: bool) -> Features:
        if alone:
            return super().picture(processor, medium, alone)
        image = medium.load().convert("RGB")  # type: ignore[union-attr]
        out = processor(text=[self.image_token * 2], images=[[image, image]], add_special_tokens=False, return_tensors="pt")
        half = {name: value[:1] for name, value in out.items()}  # a picture in company: the processor says how, by example
        half["input_ids"] = out["input_ids"][:, : out["input_ids"].shape[1] // 2]
        half["batch_num_images"] = torch.tensor([2])
        return self.features(processor, medium, half, image.size)

    def batched(self, images: list[Any]) -> list[Any]:
        return [images]

    def seen_size(self, processor: Any, tensors: dict[str, Tensor], kind: str, original: tuple[int, int]) -> tuple[int, int]:
        return original  # coordinates are shares of the sides: the tiles' size does not matter

    def outputs(self, model: nn.Module, kind: str, seen: Sequence[Seen]) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        parts = tuple(s.embeds_NH for s in seen)
        return BaseModelOutputWithPooling(pooler_output=parts if kind == "image" else torch.cat(parts)[None])
