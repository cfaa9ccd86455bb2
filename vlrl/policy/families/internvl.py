"""InternVL 2.5 / 3 / 3.5 in transformers format: image tiles, pixel shuffle, a causal language model; video
frames are treated as images.

Source: InternVL3, arXiv:2504.10479; dynamic tiles from InternVL 1.5, arXiv:2404.16821, sec. 3.3; boxes in
thousandths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.costs import PictureCost, SavedTensors
from vlrl.policy.encoded import MediaEmbeds
from vlrl.policy.families.vision import Units, VisionFamily
from vlrl.policy.family import pooled_output
from vlrl.policy.tiny import Tiny, media_template, qwen_tokenizer
from vlrl.services.lazy import nn, torch

SPECIAL_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
CHAT_TEMPLATE = media_template("<IMG_CONTEXT>\n", "<video>\n")


@register("internvl")
@dataclass(frozen=True, kw_only=True)
class InternVL(VisionFamily):
    """InternVL checkpoints whose names end in "-hf". Coordinates are thousandths of width and height."""

    units: ClassVar[Units] = "per_mille"
    image_token: ClassVar[str] = "<IMG_CONTEXT>"
    video_token: ClassVar[str] = "<video>"
    embed_token: ClassVar[str] = "<IMG_CONTEXT>"
    prompt_only_tokens: ClassVar[tuple[str, ...]] = ("<img>", "</img>")
    frames_are_images: ClassVar[bool] = True
    saved_tensors: ClassVar[Mapping[str, SavedTensors]] = {
        "internvl_vision": SavedTensors(
            hidden=6, hidden_float=2, hidden_cast=6, inner=2, statistics=4, float_residual=False
        )
    }

    def make_processor(self, tokenizer: Any, sizes: Mapping[str, int]) -> Any:
        from transformers import GotOcr2ImageProcessor, InternVLProcessor, InternVLVideoProcessor

        size = {"height": sizes["side"], "width": sizes["side"]}
        return InternVLProcessor(
            GotOcr2ImageProcessor(size=size, max_patches=sizes["max_tiles"], crop_to_patches=True),
            tokenizer,
            InternVLVideoProcessor(size=size),
            image_seq_length=sizes["tokens"],
            chat_template=CHAT_TEMPLATE,
        )

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        from transformers import InternVLConfig, InternVLForConditionalGeneration

        tokenizer = qwen_tokenizer(
            tiny.vocabulary, template=CHAT_TEMPLATE, extra_special_tokens=SPECIAL_TOKENS
        )
        sizes = {"image_size": [4 * tiny.patch] * 2, "patch_size": [tiny.patch] * 2}
        config = InternVLConfig(
            vision_config=tiny.tower() | sizes | {"initializer_range": tiny.std},
            text_config=tiny.text(tokenizer) | {"model_type": "qwen2"},
            image_token_id=tokenizer.convert_tokens_to_ids(self.embed_token),
            image_seq_length=4,
            tie_word_embeddings=tiny.tie,
        )
        processor = self.make_processor(tokenizer, {"side": 4 * tiny.patch, "tokens": 4, "max_tiles": 4})
        return self.random_model(InternVLForConditionalGeneration, config), processor

    def limit_image(self, part: Any, config: Any) -> None:
        """A picture is cut into `min_patches` to `max_patches` tiles; more than one have the whole picture
        beside them."""
        least, most = self.tile_bounds(part.size["height"])
        if self.max_pixels is not None:
            part.max_patches = min(part.max_patches, most - 1) if most > 2 else 1
        if least > 1:
            part.min_patches = max(part.min_patches, least - 1, 2)
        if part.min_patches > part.max_patches:
            pixels = (part.max_patches + (part.max_patches > 1)) * part.size["height"] ** 2
            self.refuse_pixels("min_pixels", f"under the other bounds a picture has at most {pixels} pixels")

    def picture_cost(self, processor: Any, config: Any, width: int, height: int) -> PictureCost:
        cost = super().picture_cost(processor, config, width, height)
        tiles = cost.patches // cost.largest  # each with a class token
        return replace(cost, patches=cost.patches + tiles, largest=cost.largest + 1)

    def encoder_outputs(self, model: nn.Module, kind: str, embeds: Sequence[MediaEmbeds]) -> Any:
        return pooled_output(torch.cat([e.embeds_NH for e in embeds]))
