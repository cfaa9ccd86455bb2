"""InternVL 2.5 / 3 / 3.5 in transformers format: image tiles, pixel shuffle, a causal language model; video
frames are treated as images.

Source: InternVL3, arXiv:2504.10479; dynamic tiles from InternVL 1.5, arXiv:2404.16821, sec. 3.3; boxes in
thousandths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.encoded import MediaEmbeds
from vlrl.policy.families.vision import Units, VisionFamily
from vlrl.policy.family import pooled_output
from vlrl.policy.tiny import TEMPLATE, Tiny, qwen_tokenizer
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import Media

SPECIAL_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
CHAT_TEMPLATE = TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<IMG_CONTEXT>\n").replace(
    "<|vision_start|><|video_pad|><|vision_end|>", "<video>\n"
)


@register("internvl")
@dataclass(frozen=True, kw_only=True)
class InternVL(VisionFamily):
    """InternVL checkpoints whose names end in "-hf". Coordinates are thousandths of width and height."""

    units: ClassVar[Units] = "per_mille"
    image_token: ClassVar[str] = "<IMG_CONTEXT>"
    video_token: ClassVar[str] = "<video>"
    embed_token: ClassVar[str] = "<IMG_CONTEXT>"
    prompt_only_tokens: ClassVar[tuple[str, ...]] = ("<img>", "</img>")

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        from transformers import (
            GotOcr2ImageProcessor,
            InternVLConfig,
            InternVLForConditionalGeneration,
            InternVLProcessor,
            InternVLVideoProcessor,
        )

        tokenizer = qwen_tokenizer(
            tiny.vocabulary, template=CHAT_TEMPLATE, extra_special_tokens=SPECIAL_TOKENS
        )
        side = {"height": 4 * tiny.patch, "width": 4 * tiny.patch}
        image = GotOcr2ImageProcessor(size=side, min_patches=1, max_patches=4)
        processor = InternVLProcessor(
            image,
            tokenizer,
            InternVLVideoProcessor(size=side),
            image_seq_length=4,
            chat_template=CHAT_TEMPLATE,
        )
        vision = {
            "hidden_size": tiny.vision_hidden,
            "num_hidden_layers": tiny.vision_layers,
            "num_attention_heads": tiny.vision_heads,
            "intermediate_size": 2 * tiny.vision_hidden,
            "image_size": [4 * tiny.patch] * 2,
            "patch_size": [tiny.patch] * 2,
            "initializer_range": tiny.std,
        }
        text = tiny.text(tokenizer) | {"model_type": "qwen2"}
        image_id = tokenizer.convert_tokens_to_ids(self.embed_token)
        config = InternVLConfig(
            vision_config=vision,
            text_config=text,
            image_token_id=image_id,
            image_seq_length=4,
            tie_word_embeddings=tiny.tie,
        )
        return self.random_model(InternVLForConditionalGeneration, config), processor

    def model_kind(self, medium: Media) -> str:
        return "image"

    def resized_size(
        self, processor: Any, tensors: dict[str, Tensor], kind: str, original: tuple[int, int]
    ) -> tuple[int, int]:
        return tensors["pixel_values"].shape[-1], tensors["pixel_values"].shape[
            -2
        ]  # of a tile, which is enough for coordinates in thousandths

    def encoder_outputs(self, model: nn.Module, kind: str, embeds: Sequence[MediaEmbeds]) -> Any:
        return pooled_output(torch.cat([e.embeds_NH for e in embeds]))
