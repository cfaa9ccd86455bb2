"""Mistral 3 and Pixtral: pictures at their own size, a break token after every row of patches.

Source: Pixtral 12B, arXiv:2410.07073, sec. 2.2; Mistral Small 3.1 merges 2 x 2 patches into one embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.costs import PictureCost
from vlrl.policy.families.vision import Units, VisionFamily
from vlrl.policy.tiny import Tiny, media_template


@register("mistral3")
@dataclass(frozen=True, kw_only=True)
class Mistral3(VisionFamily):
    """Mistral Small 3.1 / 3.2 (24B), Ministral 3. The models define no coordinate convention: thousandths are
    assumed. No video."""

    transformers_name: ClassVar[str] = "Mistral3"
    units: ClassVar[Units] = "per_mille"
    image_token: ClassVar[str] = "[IMG]"
    prompt_only_tokens: ClassVar[tuple[str, ...]] = ("[IMG_BREAK]", "[IMG_END]")
    tower_inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {"image": ("pixel_values", "image_sizes")}
    template: ClassVar[str] = media_template("[IMG]")
    extra_tokens: ClassVar[Mapping[str, str]] = {
        "image_token": "[IMG]",
        "image_break_token": "[IMG_BREAK]",
        "image_end_token": "[IMG_END]",
    }
    config_tokens: ClassVar[Mapping[str, str]] = {"image_token_index": "[IMG]"}

    def make_processor(self, tokenizer: Any, sizes: Mapping[str, int]) -> Any:
        from transformers import PixtralImageProcessor, PixtralProcessor

        patch, merge, size = sizes["patch"], sizes["merge"], {"longest_edge": sizes["longest"]}
        image = PixtralImageProcessor(size=size, patch_size={"height": patch, "width": patch})
        return PixtralProcessor(
            image, tokenizer, patch, merge, chat_template=self.template, **dict(self.extra_tokens)
        )

    def tiny_sizes(self, tiny: Tiny) -> Mapping[str, int]:
        return {"patch": tiny.patch, "merge": 2, "longest": 16 * tiny.patch}

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        return {"model_type": "mistral", "head_dim": tiny.hidden // tiny.heads, "sliding_window": None}

    def tiny_vision(self, tiny: Tiny) -> Mapping[str, Any]:
        rope = {"rope_type": "default", "rope_theta": tiny.mrope_theta}
        return tiny.tower() | {"image_size": 16 * tiny.patch, "rope_parameters": rope}

    def limit_image(self, part: Any, config: Any) -> None:
        """A picture's longer side is bounded; smaller pictures keep their size."""
        unit = part.patch_size["height"] * config.spatial_merge_size
        if (self.min_pixels or 0) > unit**2:
            self.refuse_pixels(
                "min_pixels", f"{self.name!r} enlarges no picture; give at most {unit**2}, or leave it out"
            )
        if self.max_pixels is None:
            return
        if self.max_pixels < unit**2:
            self.refuse_pixels("max_pixels", f"{self.name!r} shows its tower {unit**2} pixels or more")
        longest = int(math.sqrt(self.max_pixels) // unit) * unit
        part.size = type(part.size)(longest_edge=min(longest, part.size["longest_edge"]))

    def picture_cost(self, processor: Any, config: Any, width: int, height: int) -> PictureCost:
        unit, longest = processor.patch_size * processor.spatial_merge_size, processor.image_processor.size
        shrink = max(width / longest["longest_edge"], height / longest["longest_edge"], 1.0)
        columns, rows = (math.ceil(int(side / shrink) / unit) for side in (width, height))
        patches = columns * rows * processor.spatial_merge_size**2
        return PictureCost((columns + 1) * rows, patches, patches)
