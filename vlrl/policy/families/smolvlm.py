"""SmolVLM and Idefics3: image tiles plus the whole image, pixel shuffle, a Llama-like language model; video
frames are treated as images.

Source: SmolVLM, arXiv:2504.05299; Idefics3, arXiv:2408.12637, sec. 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy import patch_grid
from vlrl.policy.encoded import Features, MediaEmbeds
from vlrl.policy.families.vision import Units, VisionFamily
from vlrl.policy.family import base, pooled_output
from vlrl.policy.tiny import TEMPLATE, Tiny, qwen_tokenizer
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import Media

SPECIAL_TOKENS = {
    "fake_image_token": "<fake_token_around_image>",
    "image_token": "<image>",
    "end_of_utterance_token": "<end_of_utterance>",
    "global_image_token": "<global-img>",
    "video_token": "<video>",
}
TILES = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
CHAT_TEMPLATE = TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>").replace(
    "<|vision_start|><|video_pad|><|vision_end|>", "<video>"
)


@register("smolvlm")
@dataclass(frozen=True, kw_only=True)
class SmolVLM(VisionFamily):
    """SmolVLM2 and Idefics3 checkpoints. They define no coordinate convention: fractions of width and height
    are assumed."""

    units: ClassVar[Units] = "unit"
    image_token: ClassVar[str] = "<image>"
    video_token: ClassVar[str] = "<video>"
    embed_token: ClassVar[str] = "<image>"
    prompt_only_tokens: ClassVar[tuple[str, ...]] = ("<fake_token_around_image>", "<global-img>", *TILES)
    tower_inputs: ClassVar[dict[str, tuple[str, ...]]] = {"image": ("pixel_values", "pixel_attention_mask")}
    tiny_grid: ClassVar[tuple[int, int]] = (
        4,
        2,
    )  # patches on a side of a tiny model's tile, and patches on a side of one embedding

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        from transformers import (
            SmolVLMConfig,
            SmolVLMForConditionalGeneration,
            SmolVLMImageProcessor,
            SmolVLMProcessor,
            SmolVLMVideoProcessor,
        )

        tokenizer = qwen_tokenizer(
            tiny.vocabulary, special=TILES[:4], template=CHAT_TEMPLATE, extra_special_tokens=SPECIAL_TOKENS
        )
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *TILES]})
        patches, shuffle = self.tiny_grid
        side = patches * tiny.patch
        image = SmolVLMImageProcessor(size={"longest_edge": 2 * side}, max_image_size={"longest_edge": side})
        sampling = {"video_size": {"longest_edge": side}, "max_frames": 64, "fps": 1}
        video = SmolVLMVideoProcessor(
            size={"longest_edge": side}, max_image_size={"longest_edge": side}, video_sampling=sampling
        )
        processor = SmolVLMProcessor(
            image, tokenizer, video, image_seq_len=(patches // shuffle) ** 2, chat_template=CHAT_TEMPLATE
        )
        vision = {
            "hidden_size": tiny.vision_hidden,
            "num_hidden_layers": tiny.vision_layers,
            "num_attention_heads": tiny.vision_heads,
            "intermediate_size": 2 * tiny.vision_hidden,
            "image_size": side,
            "patch_size": tiny.patch,
            "initializer_range": tiny.std,
        }
        image_id = tokenizer.convert_tokens_to_ids("<image>")
        text = tiny.text(tokenizer) | {"model_type": "llama"}
        config = SmolVLMConfig(
            vision_config=vision,
            text_config=text,
            image_token_id=image_id,
            scale_factor=shuffle,
            tie_word_embeddings=tiny.tie,
        )
        return self.random_model(SmolVLMForConditionalGeneration, config), processor

    def encode_media(self, model: nn.Module, features: Sequence[Features]) -> list[MediaEmbeds]:
        patch_grid.use_in_transformers(
            base(model).model.vision_model.embeddings
        )  # here, because copies of a sharded model are made anew
        return super().encode_media(model, features)

    def processor_batch(self, media: list[Any]) -> list[Any]:
        return [media]

    def model_kind(self, medium: Media) -> str:
        return "image"

    def resized_size(
        self, processor: Any, tensors: dict[str, Tensor], kind: str, original: tuple[int, int]
    ) -> tuple[int, int]:
        return original  # coordinates are fractions of width and height: the tiles' size does not matter

    def encoder_outputs(self, model: nn.Module, kind: str, embeds: Sequence[MediaEmbeds]) -> Any:
        config = base(model).config
        tile = (
            config.vision_config.image_size // config.vision_config.patch_size // config.scale_factor
        ) ** 2
        embeds_NH = torch.cat([e.embeds_NH for e in embeds])
        return pooled_output(embeds_NH.view(-1, tile, embeds_NH.shape[-1]))
