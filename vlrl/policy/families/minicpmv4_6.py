"""MiniCPM-V 4.6: SigLIP 2 at the picture's own proportions, large pictures as slices beside the whole one,
patches merged twice; the language model of Qwen3.5.

Source: transformers 5.19, models/minicpmv4_6; LLaVA-UHD (slices), arXiv:2403.11703, sec. 3.1; coordinates are
thousandths of width and height (OpenBMB's guide to fine-tuning on points).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import ConfigError, register
from vlrl.policy.costs import PictureCost
from vlrl.policy.encoded import Features, MediaEmbeds
from vlrl.policy.families.vision import Units, VisionFamily
from vlrl.policy.recurrent import with_memory
from vlrl.policy.tiny import Tiny, media_template
from vlrl.services.lazy import nn, torch

UNIT = 4  # patches on a side of what becomes one embedding
WIDEST = 16  # the proportion of sides up to which pixel bounds hold


@register("minicpmv4_6")
@dataclass(frozen=True, kw_only=True)
class MiniCPMV46(VisionFamily):
    """MiniCPM-V 4.6. Coordinates are thousandths of width and height. Pixel bounds hold for pictures of sides
    up to 16 : 1."""

    transformers_name: ClassVar[str] = "MiniCPMV4_6"
    no_sequence_parallel: ClassVar[str] = "has linear attention, which needs the state of all earlier tokens"
    units: ClassVar[Units] = "per_mille"
    image_token: ClassVar[str] = "<|image_pad|>"
    video_token: ClassVar[str] = "<|video_pad|>"
    prompt_only_tokens: ClassVar[tuple[str, ...]] = (
        "<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>"
    )  # fmt: skip
    tower_inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "image": ("pixel_values", "target_sizes"),
        "video": ("pixel_values_videos", "target_sizes_videos"),
    }
    template: ClassVar[str] = media_template("<|image_pad|>\n", "<|video_pad|>\n")
    extra_tokens: ClassVar[Mapping[str, str]] = {
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "image_start_token": "<image>",
        "image_end_token": "</image>",
        "slice_start_token": "<slice>",
        "slice_end_token": "</slice>",
        "image_id_start_token": "<image_id>",
        "image_id_end_token": "</image_id>",
    }
    config_tokens: ClassVar[Mapping[str, str]] = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
    }

    def make_processor(self, tokenizer: Any, sizes: Mapping[str, int]) -> Any:
        import transformers

        part = {"patch_size": sizes["patch"], "scale_resolution": sizes["side"]}
        part["max_slice_nums"] = sizes["max_slices"]
        return transformers.MiniCPMV4_6Processor(
            transformers.MiniCPMV4_6ImageProcessor(**part),
            transformers.MiniCPMV4_6VideoProcessor(**part),
            tokenizer,
            chat_template=self.template,
        )

    def tiny_sizes(self, tiny: Tiny) -> Mapping[str, int]:
        return {"patch": tiny.patch, "side": 2 * UNIT * tiny.patch, "max_slices": 4}

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        return {"model_type": "qwen3_5_text", **tiny.delta_rule()}

    def tiny_vision(self, tiny: Tiny) -> Mapping[str, Any]:
        return tiny.tower() | {"image_size": 16 * tiny.patch}

    def tiny_fields(self, tiny: Tiny) -> Mapping[str, Any]:
        return {"insert_layer_id": 0}

    def random_model(self, model_class: Any, config: Any, **options: Any) -> Any:
        return with_memory(super().random_model(model_class, config, **options))

    # --- pixel bounds ---------------------------------------------------------------------------------------

    def limit_pixels(self, processor: Any, config: Any) -> None:
        for part in (processor.image_processor, processor.video_processor):
            if part.downsample_mode != config.downsample_mode:
                raise ConfigError(
                    f"policy.model: the processor of {self.model!r} has downsample_mode "
                    f"{part.downsample_mode!r}, its config.json {config.downsample_mode!r}; set both alike"
                )
        super().limit_pixels(processor, config)

    def limit_image(self, part: Any, config: Any) -> None:
        self.limit_slices(part, "max_pixels", self.max_pixels, self.min_pixels)

    def limit_frame(self, part: Any) -> None:
        self.limit_slices(part, "video_max_pixels", self.video_max_pixels, None)

    def limit_slices(self, part: Any, field: str, most: int | None, least: int | None) -> None:
        """A picture has about `scale_resolution`^2 pixels; a larger one that, and as much again in each of at
        most `max_slice_nums` slices. Slices go first, then the resolution."""
        side, unit = part.scale_resolution, UNIT * part.patch_size
        while least is not None and _pixels(side, unit)[0] < least:
            side += 1
        if most is not None:
            if _pixels(2 * unit, unit)[1] > most:
                pixels = _pixels(2 * unit, unit)[1]
                self.refuse_pixels(field, f"{self.name!r} shows its tower up to {pixels}; give at least that")
            while _pixels(side, unit)[1] > most:
                side -= 1
            if least is not None and _pixels(side, unit)[0] < least:
                self.refuse_pixels("min_pixels", f"under {field} narrow pictures have fewer; raise {field}")
            slices = most // _pixels(side, unit)[1] - 1
            part.max_slice_nums = min(part.max_slice_nums, slices) if slices > 1 else 1
        part.scale_resolution = side

    def picture_cost(self, processor: Any, config: Any, width: int, height: int) -> PictureCost:
        part, size = processor.image_processor, (height, width)
        rules = {"scale_resolution": part.scale_resolution, "patch_size": part.patch_size}
        grid = None
        if part.slice_mode:
            grid = part.get_sliced_grid(size, part.max_slice_nums, part.scale_resolution)
        whole = math.prod(part.find_best_resize(size, **rules, allow_upscale=grid is None))
        sliced = 0
        if grid is not None:
            sliced = math.prod(part.get_refine_size(size, grid, **rules, allow_upscale=True))
        pixels = part.patch_size**2
        patches = (whole + sliced) // pixels
        largest = max(whole, sliced // math.prod(grid or (1,))) // pixels
        return PictureCost(patches // processor.image_token_divisor, patches, largest)

    # --- prompts --------------------------------------------------------------------------------------------

    def numbered(self, processor: Any, features: Features, number: int) -> str:
        """The medium's text behind its number among those of its kind, which the processor wrote as 0."""
        start, end = processor.image_id_start_token, processor.image_id_end_token
        first = f"{start}0{end}"
        if not features.text.startswith(first):  # a processor that writes no numbers (`use_image_id`)
            return features.text
        return f"{start}{number}{end}{features.text.removeprefix(first)}"

    # --- forward --------------------------------------------------------------------------------------------

    def encode_media(self, model: nn.Module, features: Sequence[Features]) -> list[MediaEmbeds]:
        """Slices and frames of all media, of any sizes, go through the tower as one row of patches."""
        core, device = self.tower_owner(model), next(model.parameters()).device
        names = [self.tower_inputs[f.kind] for f in features]
        pixels = torch.cat([f.tensors[name] for f, (name, _) in zip(features, names)], dim=-1)
        sizes = [f.tensors[name] for f, (_, name) in zip(features, names)]
        output = core.get_image_features(pixels.to(device), torch.cat(sizes).to(device), return_dict=True)
        parts = iter(output.pooler_output)  # of each slice
        return [MediaEmbeds(torch.cat([next(parts) for _ in each])) for each in sizes]


def _pixels(side: int, unit: int) -> tuple[int, int]:
    """The fewest and the most pixels of a picture that is brought to `side`^2 and then to sides that are
    multiples of `unit`, up to the proportion `WIDEST`."""
    ratio, half = math.sqrt(WIDEST), unit / 2
    most = (side * ratio + half) * max(side / ratio + half, unit)
    # whole pixels are cut off; no side is below one unit, so that a picture narrower than `turn` has more
    turn = min(max(side / (unit + 1 + half), 1), ratio)
    least = max(side * turn - turn**2 - 1 - half, unit) * max(side / turn - 1 - half, unit)
    return math.floor(least), math.ceil(most)
