"""Qwen2.5-VL: M-RoPE over (time, height, width), window attention in the vision tower, boxes in pixels of the
resized image.

Source: Qwen2.5-VL technical report, arXiv:2502.13923 (absolute coordinates, sec. 2.1; absolute time, sec.
2.1.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.encoded import Features
from vlrl.policy.families.vision import Units, VisionFamily, decoded_image
from vlrl.policy.family import base
from vlrl.policy.tiny import SPECIAL, Tiny, qwen_tokenizer
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import CoordinateSpace, Media


@dataclass(frozen=True, kw_only=True)
class QwenVL(VisionFamily):
    """The base of all Qwen-VL generations: tokens, grids and rotary positions."""

    units: ClassVar[Units] = "seen"
    image_token: ClassVar[str] = "<|image_pad|>"
    video_token: ClassVar[str] = "<|video_pad|>"
    prompt_only_tokens: ClassVar[tuple[str, ...]] = SPECIAL[9:]
    tower_inputs: ClassVar[dict[str, tuple[str, ...]]] = {
        "image": ("pixel_values", "image_grid_thw"),
        "video": ("pixel_values_videos", "video_grid_thw"),
    }
    position_inputs: ClassVar[tuple[str, ...]] = ("second_per_grid_ts",)

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
        space = CoordinateSpace(
            image.size, self.resized_size(processor, tensors, "image", image.size), self.units
        )
        return Features(medium.key, "image", self.image_token * count, tensors, space, count)

    def resized_size(
        self, processor: Any, tensors: dict[str, Tensor], kind: str, original: tuple[int, int]
    ) -> tuple[int, int]:
        _, height, width = tensors[f"{kind}_grid_thw"][0].tolist()
        patch = processor.image_processor.patch_size
        return width * patch, height * patch

    def positions(
        self, model: nn.Module, ids: list[int], types: list[int], features: Sequence[Features]
    ) -> tuple[Tensor, int]:
        grids = {
            kind: [f.tensors[f"{kind}_grid_thw"] for f in features if f.kind == kind]
            for kind in ("image", "video")
        }
        seconds = [f.tensors["second_per_grid_ts"] for f in features if "second_per_grid_ts" in f.tensors]
        extra = (
            {
                "second_per_grid_ts": torch.cat(
                    [torch.as_tensor(s, dtype=torch.float32).flatten() for s in seconds]
                )
            }
            if seconds
            else {}
        )
        positions, _ = base(model).model.get_rope_index(
            torch.tensor([ids]),
            mm_token_type_ids=torch.tensor([types]),
            **{f"{kind}_grid_thw": torch.cat(grid) for kind, grid in grids.items() if grid},
            **extra,
        )
        return sequential_positions(positions[:, 0], types)

    def tiny_processor(
        self, tiny: Tiny, processor_class: type, image_class: type, video_class: type, merge: int = 2
    ) -> Any:
        tokenizer = qwen_tokenizer(tiny.vocabulary)
        unit = (tiny.patch * merge) ** 2
        sizes = {"patch_size": tiny.patch, "merge_size": merge}
        image = image_class(**sizes, size={"shortest_edge": unit, "longest_edge": 1280 * unit})
        video = video_class(
            **sizes, size={"shortest_edge": unit, "longest_edge": 768 * unit}, cap_pixels_per_frame=True
        )
        return processor_class(
            image_processor=image,
            tokenizer=tokenizer,
            video_processor=video,
            chat_template=tokenizer.chat_template,
        )

    def tiny_ids(self, tokenizer: Any) -> dict[str, Any]:
        names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
        names |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
        return {name: tokenizer.convert_tokens_to_ids(token) for name, token in names.items()}


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

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        from transformers import (
            Qwen2_5_VLConfig,
            Qwen2_5_VLForConditionalGeneration,
            Qwen2_5_VLProcessor,
            Qwen2VLImageProcessor,
            Qwen2VLVideoProcessor,
        )

        processor = self.tiny_processor(
            tiny, Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor
        )
        vision = {
            "depth": tiny.vision_layers,
            "hidden_size": tiny.vision_hidden,
            "intermediate_size": 2 * tiny.vision_hidden,
            "num_heads": tiny.vision_heads,
            "patch_size": tiny.patch,
            "out_hidden_size": tiny.hidden,
            "window_size": 8 * tiny.patch,
            "tokens_per_second": 2,
            "fullatt_block_indexes": [tiny.vision_layers - 1],
            "initializer_range": tiny.std,
        }
        text = tiny.text(processor.tokenizer) | {"rope_parameters": tiny.mrope()}
        config = Qwen2_5_VLConfig(
            text_config=text,
            vision_config=vision,
            tie_word_embeddings=tiny.tie,
            **self.tiny_ids(processor.tokenizer),
        )
        return self.random_model(Qwen2_5_VLForConditionalGeneration, config), processor
