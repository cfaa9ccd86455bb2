"""Ovis2: a tower whose outputs are distributions over a table of visual words; pictures as tiles between
indicator tokens, whose embeddings stand in the same table.

Source: Ovis, arXiv:2405.20797, sec. 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.costs import PictureCost
from vlrl.policy.encoded import MediaEmbeds
from vlrl.policy.families.vision import Units, VisionFamily
from vlrl.policy.family import base
from vlrl.policy.tiny import Tiny, media_template
from vlrl.services.lazy import nn, torch

INDICATORS = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")


@register("ovis2")
@dataclass(frozen=True, kw_only=True)
class Ovis2(VisionFamily):
    """Ovis2 checkpoints whose names end in "-hf" (1B to 34B). The models define no coordinate convention:
    thousandths are assumed. No video."""

    transformers_name: ClassVar[str] = "Ovis2"
    units: ClassVar[Units] = "per_mille"
    image_token: ClassVar[str] = "<image>"
    embed_token: ClassVar[str] = "<IMG_ATOM>"
    prompt_only_tokens: ClassVar[tuple[str, ...]] = INDICATORS
    template: ClassVar[str] = media_template("<image>")
    extra_tokens: ClassVar[Mapping[str, str]] = {
        "image_token": "<image>",
        "atom_token": "<IMG_ATOM>",
        **{f"{token[5:-1].lower()}_token": token for token in INDICATORS},
    }
    config_tokens: ClassVar[Mapping[str, str]] = {"image_token_id": "<IMG_ATOM>"}

    def make_processor(self, tokenizer: Any, sizes: Mapping[str, int]) -> Any:
        from transformers import Ovis2ImageProcessor, Ovis2Processor

        size = {"height": sizes["side"], "width": sizes["side"]}
        image = Ovis2ImageProcessor(size=size, max_patches=sizes["max_tiles"], crop_to_patches=True)
        return Ovis2Processor(image, tokenizer, chat_template=self.template, image_seq_length=sizes["tokens"])

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        return {"model_type": "qwen2"}

    def tiny_vision(self, tiny: Tiny) -> Mapping[str, Any]:
        return {**super().tiny_vision(tiny), "hidden_stride": 2, "vocab_size": 128}

    def tiny_fields(self, tiny: Tiny) -> Mapping[str, Any]:
        tokenizer = self.tiny_tokenizer(tiny)
        ids = tokenizer.convert_tokens_to_ids(list(INDICATORS))
        return {"visual_indicator_token_ids": ids, "hidden_size": tiny.hidden, "vocab_size": len(tokenizer)}

    def limit_image(self, part: Any, config: Any) -> None:
        """A picture is cut into the fewest tiles that cover nine tenths of it, at most `max_patches`; more
        than one have the whole picture beside them."""
        least, most = self.tile_bounds(part.size["height"])
        if least > 1:
            pixels = part.size["height"] ** 2
            self.refuse_pixels("min_pixels", f"small pictures have {pixels} pixels; give at most {pixels}")
        part.max_patches = min(part.max_patches, most - 1) if most > 2 else 1

    def picture_cost(self, processor: Any, config: Any, width: int, height: int) -> PictureCost:
        from transformers.models.ovis2.image_processing_ovis2 import get_min_tile_covering_grid

        part, vision = processor.image_processor, config.vision_config
        columns, rows = get_min_tile_covering_grid((height, width), part.size["height"], part.max_patches)
        tiles = columns * rows + (columns * rows > 1)
        patches = (vision.image_size // vision.patch_size) ** 2
        return PictureCost(tiles * processor.image_seq_length, tiles * patches, patches)

    def encoder_outputs(self, model: nn.Module, kind: str, embeds: Sequence[MediaEmbeds]) -> Any:
        from transformers.models.ovis2.modeling_ovis2 import BaseModelOutputWithVisualIndicatorFeatures

        core = base(model).model
        table, count = core.visual_embeddings_table, core.vision_tower.num_visual_indicator_tokens
        last = torch.arange(core.visual_vocab_size, device=table.weight.device)[-count:]
        pooled: Any = torch.cat([e.embeds_NH for e in embeds])[None]
        return BaseModelOutputWithVisualIndicatorFeatures(
            pooler_output=pooled, visual_indicator_features=table(last)
        )
