"""Gemma 3: images of a fixed number of SigLIP tokens with bidirectional attention; five sliding-window layers
per full-attention layer.

Source: Gemma 3 technical report, arXiv:2503.19786, sec. 2 (local : global layers 5 : 1; 256 soft tokens per
image).
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

SPECIAL_TOKENS = {
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}
NEWLINES = (
    "\n",
    "\n\n",
    "\n\n\n",
    "\n\n\n\n",
)  # single tokens of the released tokenizer; vLLM joins those that meet around an image
CHAT_TEMPLATE = TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<start_of_image>")


@register("gemma3")
@dataclass(frozen=True, kw_only=True)
class Gemma3(VisionFamily):
    """Gemma 3 (4B, 12B, 27B). The model defines no coordinate convention: thousandths are assumed. No
    video."""

    units: ClassVar[Units] = "per_mille"
    bidirectional_images: ClassVar[bool] = True
    image_token: ClassVar[str] = "<start_of_image>"
    embed_token: ClassVar[str] = "<image_soft_token>"
    prompt_only_tokens: ClassVar[tuple[str, ...]] = ("<end_of_image>",)

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        from tokenizers import AddedToken
        from transformers import (
            Gemma3Config,
            Gemma3ForConditionalGeneration,
            Gemma3ImageProcessor,
            Gemma3Processor,
        )

        tokenizer = qwen_tokenizer(
            tiny.vocabulary, template=CHAT_TEMPLATE, extra_special_tokens=SPECIAL_TOKENS
        )
        tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in NEWLINES])
        side = 4 * tiny.patch
        image = Gemma3ImageProcessor(size={"height": side, "width": side})
        processor = Gemma3Processor(image, tokenizer, chat_template=CHAT_TEMPLATE, image_seq_length=4)
        vision = {
            "hidden_size": tiny.vision_hidden,
            "num_hidden_layers": tiny.vision_layers,
            "num_attention_heads": tiny.vision_heads,
            "intermediate_size": 2 * tiny.vision_hidden,
            "image_size": side,
            "patch_size": tiny.patch,
        }
        text = tiny.text(tokenizer) | {
            "head_dim": tiny.hidden // tiny.heads,
            "query_pre_attn_scalar": tiny.hidden // tiny.heads,
            "sliding_window": 8,
            "layer_types": ["full_attention" if i % 2 else "sliding_attention" for i in range(tiny.layers)],
        }
        ids = {
            f"{short}_token_index": tokenizer.convert_tokens_to_ids(SPECIAL_TOKENS[f"{short}_token"])
            for short in ("boi", "eoi", "image")
        }
        config = Gemma3Config(
            text_config=text, vision_config=vision, mm_tokens_per_image=4, tie_word_embeddings=tiny.tie, **ids
        )
        model = self.random_model(Gemma3ForConditionalGeneration, config)
        model.model.multi_modal_projector.mm_input_projection_weight.data.normal_(
            0, tiny.std
        )  # zeros by default, which would remove all images
        return model, processor

    def processor_batch(self, media: list[Any]) -> list[Any]:
        return [media]

    def resized_size(
        self, processor: Any, tensors: dict[str, Tensor], kind: str, original: tuple[int, int]
    ) -> tuple[int, int]:
        return tensors["pixel_values"].shape[-1], tensors["pixel_values"].shape[-2]

    def encoder_outputs(self, model: nn.Module, kind: str, embeds: Sequence[MediaEmbeds]) -> Any:
        return pooled_output(torch.cat([e.embeds_NH for e in embeds]))
