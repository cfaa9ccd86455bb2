"""Gemma 3: images of a fixed number of SigLIP tokens with bidirectional attention; five sliding-window layers
per full-attention layer.

Source: Gemma 3 technical report, arXiv:2503.19786, sec. 2 (local : global layers 5 : 1; 256 soft tokens per
image; pan and scan, sec. 2.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.costs import SavedTensors
from vlrl.policy.families.vision import Units, VisionFamily
from vlrl.policy.tiny import Tiny, media_template

# single tokens of the released tokenizer; vLLM joins those that meet around an image
NEWLINES = ("\n", "\n\n", "\n\n\n", "\n\n\n\n")


@register("gemma3")
@dataclass(frozen=True, kw_only=True)
class Gemma3(VisionFamily):
    """Gemma 3 (4B, 12B, 27B). The model defines no coordinate convention: thousandths are assumed. No
    video."""

    transformers_name: ClassVar[str] = "Gemma3"
    units: ClassVar[Units] = "per_mille"
    bidirectional_images: ClassVar[bool] = True
    image_token: ClassVar[str] = "<start_of_image>"
    embed_token: ClassVar[str] = "<image_soft_token>"
    prompt_only_tokens: ClassVar[tuple[str, ...]] = ("<end_of_image>",)
    embeds_joined: ClassVar[bool] = True
    template: ClassVar[str] = media_template("<start_of_image>")
    extra_tokens: ClassVar[Mapping[str, str]] = {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    }
    config_tokens: ClassVar[Mapping[str, str]] = {
        "boi_token_index": "<start_of_image>",
        "eoi_token_index": "<end_of_image>",
        "image_token_index": "<image_soft_token>",
    }
    saved_tensors: ClassVar[Mapping[str, SavedTensors]] = {
        "gemma3_text": SavedTensors(
            hidden=10, hidden_float=8, hidden_cast=5, inner=4, statistics=4, qk_norm=8
        )
    }

    def make_processor(self, tokenizer: Any, sizes: Mapping[str, int]) -> Any:
        from transformers import Gemma3ImageProcessor, Gemma3Processor

        image = Gemma3ImageProcessor(size={"height": sizes["side"], "width": sizes["side"]})
        return Gemma3Processor(
            image, tokenizer, chat_template=self.template, image_seq_length=sizes["tokens"]
        )

    def tiny_tokenizer(self, tiny: Tiny) -> Any:
        from tokenizers import AddedToken

        tokenizer = super().tiny_tokenizer(tiny)
        tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in NEWLINES])
        return tokenizer

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        return {
            "head_dim": tiny.hidden // tiny.heads,
            "query_pre_attn_scalar": tiny.hidden // tiny.heads,
            "sliding_window": 8,
            "layer_types": ["full_attention" if i % 2 else "sliding_attention" for i in range(tiny.layers)],
        }

    def tiny_fields(self, tiny: Tiny) -> Mapping[str, Any]:
        return {"mm_tokens_per_image": 4}

    def random_model(self, model_class: Any, config: Any, **options: Any) -> Any:
        model = super().random_model(model_class, config, **options)
        # zeros by default, which would remove all images
        projection = model.model.multi_modal_projector.mm_input_projection_weight
        projection.data.normal_(0, config.get_text_config().initializer_range)
        return model

    def limit_image(self, part: Any, config: Any) -> None:
        self.keep_one_size(part.size["height"])  # pan and scan, which adds crops, is off unless asked for

    def processor_batch(self, media: list[Any]) -> list[Any]:
        return [media]
