"""Qwen2.5-VL: M-RoPE over (time, height, width), window attention in the vision tower, boxes in pixels of the
resized image.

Source: Qwen2.5-VL technical report, arXiv:2502.13923 (absolute coordinates, sec. 2.1; absolute time, sec.
2.1.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.costs import PictureCost, SavedTensors
from vlrl.policy.encoded import Features
from vlrl.policy.families.vision import Units, VisionFamily, decoded_image
from vlrl.policy.family import base
from vlrl.policy.tiny import SPECIAL, Tiny, qwen_tokenizer
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import CoordinateSpace, Media


@dataclass(frozen=True, kw_only=True)
class QwenVL(VisionFamily):
    """The base of all Qwen-VL generations: tokens, grids, pixel bounds and rotary positions.

    A picture is resized to sides that are multiples of one unit, `merge_size` patches a side, at least one
    unit each: only a picture narrower than `max_pixels` has units may exceed the bound.
    """

    # transformers' classes
    processor_class: ClassVar[str]
    image_class: ClassVar[str] = "Qwen2VLImageProcessor"
    video_class: ClassVar[str] = "Qwen2VLVideoProcessor"
    image_token: ClassVar[str] = "<|image_pad|>"
    video_token: ClassVar[str] = "<|video_pad|>"
    prompt_only_tokens: ClassVar[tuple[str, ...]] = SPECIAL[9:]
    tower_inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "image": ("pixel_values", "image_grid_thw"),
        "video": ("pixel_values_videos", "video_grid_thw"),
    }
    position_inputs: ClassVar[tuple[str, ...]] = ("second_per_grid_ts",)

    # --- building -------------------------------------------------------------------------------------------

    def make_processor(self, tokenizer: Any, sizes: Mapping[str, int]) -> Any:
        import transformers

        parts = {"patch_size": sizes["patch"], "merge_size": sizes["merge"]}
        pixels = {"shortest_edge": sizes["min_pixels"], "longest_edge": sizes["max_pixels"]}
        video: dict[str, Any] = {}
        if "max_frame_pixels" in sizes:
            size = {"shortest_edge": sizes["min_pixels"], "longest_edge": sizes["max_frame_pixels"]}
            video = {"size": size, "cap_pixels_per_frame": True}
        return getattr(transformers, self.processor_class)(
            image_processor=getattr(transformers, self.image_class)(**parts, size=pixels),
            tokenizer=tokenizer,
            video_processor=getattr(transformers, self.video_class)(**parts, **video),
            chat_template=tokenizer.chat_template,
        )

    def tiny_parts(self, tiny: Tiny) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """(processor, tower's config, further fields of the model's config) of a tiny model."""
        tokenizer, unit = qwen_tokenizer(tiny.vocabulary), (2 * tiny.patch) ** 2
        sizes = {"patch": tiny.patch, "merge": 2, "min_pixels": unit, "max_pixels": 1280 * unit}
        processor = self.make_processor(tokenizer, sizes | {"max_frame_pixels": 768 * unit})
        vision = {
            "depth": tiny.vision_layers,
            "hidden_size": tiny.vision_hidden,
            "intermediate_size": 2 * tiny.vision_hidden,
            "num_heads": tiny.vision_heads,
            "patch_size": tiny.patch,
            "out_hidden_size": tiny.hidden,
            "initializer_range": tiny.std,
        }
        names = {"image_token_id": self.image_token, "video_token_id": self.video_token}
        names |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
        ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in names.items()}
        return processor, vision, {"tie_word_embeddings": tiny.tie, **ids}

    # --- pixel bounds ---------------------------------------------------------------------------------------

    def limit_image(self, part: Any, config: Any) -> None:
        size = self.limited_size(part, "max_pixels")
        if self.min_pixels is not None:
            if self.min_pixels > size["longest_edge"]:
                self.refuse_pixels("min_pixels", f"the processor's maximum is {size['longest_edge']}")
            size["shortest_edge"] = self.min_pixels
        part.size = type(part.size)(**size)

    def limit_frame(self, part: Any) -> None:
        part.size = type(part.size)(**self.limited_size(part, "video_max_pixels"))

    def limited_size(self, part: Any, field: str) -> dict[str, int]:
        """A processor's size under the bound `field`; its "edges" are numbers of pixels. Its own minimum
        gives way where small pictures, enlarged to it, would exceed the bound."""
        most, unit = getattr(self, field), (part.patch_size * part.merge_size) ** 2
        size = dict(part.size)
        if most is None:
            return size
        if most < unit:
            self.refuse_pixels(
                field,
                f"{self.name!r} shows its tower one unit of {unit} pixels or more; give at least {unit}",
            )
        return {"shortest_edge": min(size["shortest_edge"], max(unit, most // 2)), "longest_edge": most}

    def picture_cost(self, processor: Any, config: Any, width: int, height: int) -> PictureCost:
        tokens, patches = self.count_tokens(processor, config, width, height)
        return PictureCost(tokens, patches, patches)

    # --- prompts --------------------------------------------------------------------------------------------

    def process_image(self, processor: Any, medium: Media, single_image: bool) -> Features:
        """One image through the image processor alone: the text is its placeholder once per embedding, whose
        number the grid gives.

        The whole processor takes about twice the time for a small picture: it checks its arguments, writes
        that text, and reads it as tokens.
        """
        image, part = decoded_image(medium), processor.image_processor
        out = part(images=[image], return_tensors="pt")
        tensors = {name: torch.as_tensor(out[name]) for name in self.tower_inputs["image"]}
        count = int(tensors["image_grid_thw"][0].prod()) // part.merge_size**2
        seen = self.resized_size(processor, tensors, "image", image.size)
        space = CoordinateSpace(image.size, seen, self.units)
        return Features(medium.key, "image", self.image_token * count, tensors, space, count)

    def resized_size(
        self, processor: Any, tensors: Mapping[str, Tensor], kind: str, original: tuple[int, int]
    ) -> tuple[int, int]:
        _, height, width = tensors[f"{kind}_grid_thw"][0].tolist()
        patch = processor.image_processor.patch_size
        return width * patch, height * patch

    def positions(
        self, model: nn.Module, ids: list[int], types: list[int], features: Sequence[Features]
    ) -> tuple[Tensor, int]:
        options: dict[str, Tensor] = {}
        for kind in ("image", "video"):
            if grids := [f.tensors[f"{kind}_grid_thw"] for f in features if f.kind == kind]:
                options[f"{kind}_grid_thw"] = torch.cat(grids)
        name = "second_per_grid_ts"
        if seconds := [f.tensors[name] for f in features if name in f.tensors]:
            flat = [torch.as_tensor(s, dtype=torch.float32).flatten() for s in seconds]
            options[name] = torch.cat(flat)
        positions, _ = base(model).model.get_rope_index(
            torch.tensor([ids]), mm_token_type_ids=torch.tensor([types]), **options
        )
        return sequential_positions(positions[:, 0], types)


def sequential_positions(positions_AL: Tensor, types: Sequence[int]) -> tuple[Tensor, int]:
    """(positions in which every run of text or media begins one after the highest position before it, the
    completion's first position).

    Source: Qwen2-VL, sec. 2.1; vLLM does the same. transformers 5.19 continues after a video's height and
    width, which its time may exceed: the text that follows would overlap the video's last frames.
    """
    cuts = [0, *(i for i in range(1, len(types)) if types[i] != types[i - 1]), len(types)]
    out_AL, following = positions_AL.clone(), 0
    for start, end in zip(cuts, cuts[1:]):
        run_AL = positions_AL[:, start:end]
        out_AL[:, start:end] = run_AL + following - run_AL.min()
        following = int(out_AL[:, start:end].max()) + 1
    return out_AL, following


@register("qwen2_5_vl")
@dataclass(frozen=True, kw_only=True)
class Qwen25VL(QwenVL):
    """Qwen2.5-VL (3B, 7B, 32B, 72B and fine-tunes of them). Coordinates are pixels of the resized image."""

    units: ClassVar[Units] = "seen"
    processor_class: ClassVar[str] = "Qwen2_5_VLProcessor"
    saved_tensors: ClassVar[Mapping[str, SavedTensors]] = {
        "qwen2_5_vl_vision": SavedTensors(
            hidden=7, hidden_float=2, hidden_cast=6, inner=4, statistics=2, fused=True, float_residual=False
        )
    }

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

        processor, vision, fields = self.tiny_parts(tiny)
        vision |= {
            "window_size": 8 * tiny.patch,
            "tokens_per_second": 2,
            "fullatt_block_indexes": [tiny.vision_layers - 1],
        }
        text = tiny.text(processor.tokenizer) | {"rope_parameters": tiny.mrope()}
        config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **fields)
        return self.random_model(Qwen2_5_VLForConditionalGeneration, config), processor
