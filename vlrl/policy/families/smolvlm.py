"""SmolVLM and Idefics3: image tiles plus the whole image, pixel shuffle, a Llama-like language model; video
frames are treated as images.

Source: SmolVLM, arXiv:2504.05299; Idefics3, arXiv:2408.12637, sec. 3.

The tower learns one embedding for each place of a square grid of patches. transformers 5.19 and vLLM 0.32
find places with `bucketize` among fractions, which they round differently (transformers to the pixels' type,
vLLM to float32): of SmolVLM2 2.2B's 27 rows and columns, transformers in bfloat16 moves six, vLLM one,
transformers in float32 none. Whole numbers (`places`) are the same everywhere, so engine and trainer see the
same picture. (transformers, issue 41190.)

Shapes: B pictures or tiles, H x W patches, N = H W, D size of an embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.encoded import Features, MediaEmbeds
from vlrl.policy.families.vision import Units, VisionFamily
from vlrl.policy.family import base, pooled_output
from vlrl.policy.tiny import Tiny, media_template, qwen_tokenizer
from vlrl.services.lazy import Tensor, nn, torch

SIDE_TILES = 6  # the tokenizer has a token for each tile of at most so many rows and columns
TILES = tuple(
    f"<row_{row}_col_{col}>" for row in range(1, 1 + SIDE_TILES) for col in range(1, 1 + SIDE_TILES)
)


@register("smolvlm")
@dataclass(frozen=True, kw_only=True)
class SmolVLM(VisionFamily):
    """SmolVLM2 and Idefics3 checkpoints. They define no coordinate convention: fractions of width and height
    are assumed."""

    transformers_name: ClassVar[str] = "SmolVLM"
    units: ClassVar[Units] = "unit"
    image_token: ClassVar[str] = "<image>"
    video_token: ClassVar[str] = "<video>"
    embed_token: ClassVar[str] = "<image>"
    prompt_only_tokens: ClassVar[tuple[str, ...]] = ("<fake_token_around_image>", "<global-img>", *TILES)
    tower_inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "image": ("pixel_values", "pixel_attention_mask")
    }
    frames_are_images: ClassVar[bool] = True
    template: ClassVar[str] = media_template("<image>", "<video>")
    extra_tokens: ClassVar[Mapping[str, str]] = {
        "fake_image_token": "<fake_token_around_image>",
        "image_token": "<image>",
        "end_of_utterance_token": "<end_of_utterance>",
        "global_image_token": "<global-img>",
        "video_token": "<video>",
    }
    config_tokens: ClassVar[Mapping[str, str]] = {"image_token_id": "<image>"}
    vllm_video_problem: ClassVar[str] = "vLLM 0.32 shows this family no videos"
    engine_patch: ClassVar[str] = "vlrl.policy.families.smolvlm:use_places_in_vllm"
    # patches on a side of a tiny model's tile, and patches on a side of one embedding
    tiny_grid: ClassVar[tuple[int, int]] = (4, 2)

    def make_processor(self, tokenizer: Any, sizes: Mapping[str, int]) -> Any:
        from transformers import SmolVLMImageProcessor, SmolVLMProcessor, SmolVLMVideoProcessor

        tile = {"longest_edge": sizes["side"]}
        sampling = {"video_size": tile, "max_frames": 64, "fps": 1}
        return SmolVLMProcessor(
            SmolVLMImageProcessor(size={"longest_edge": sizes["longest"]}, max_image_size=tile),
            tokenizer,
            SmolVLMVideoProcessor(size=tile, max_image_size=tile, video_sampling=sampling),
            image_seq_len=sizes["tokens"],
            chat_template=self.template,
        )

    def tiny_sizes(self, tiny: Tiny) -> Mapping[str, int]:
        patches, shuffle = self.tiny_grid
        side = patches * tiny.patch
        return {"side": side, "longest": 2 * side, "tokens": (patches // shuffle) ** 2}

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        return {"model_type": "llama"}

    def tiny_vision(self, tiny: Tiny) -> Mapping[str, Any]:
        return tiny.tower() | {"image_size": self.tiny_sizes(tiny)["side"], "initializer_range": tiny.std}

    def tiny_fields(self, tiny: Tiny) -> Mapping[str, Any]:
        return {"scale_factor": self.tiny_grid[1]}

    def tiny_tokenizer(self, tiny: Tiny) -> Any:
        extra = {"extra_special_tokens": dict(self.extra_tokens)}
        tokenizer = qwen_tokenizer(tiny.vocabulary, special=TILES[:4], template=self.template, **extra)
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *TILES]})
        return tokenizer

    # --- pixel bounds ---------------------------------------------------------------------------------------

    def limit_image(self, part: Any, config: Any) -> None:
        """A picture's long side is resized to `longest_edge`, whatever it was, and cut into k tiles; a square
        then has k^2 tiles and the whole picture beside them, the narrowest k and the whole."""
        side = part.max_image_size["longest_edge"]
        least, most = self.tile_bounds(side)
        own = math.ceil(part.size["longest_edge"] / side) if part.do_image_splitting else 1
        numbers = range(1, (SIDE_TILES if part.do_image_splitting else 1) + 1)
        fewest, largest = (lambda k: k + (k > 1)), (lambda k: k * k + (k > 1))
        allowed = [k for k in numbers if fewest(k) >= least and largest(k) <= most]
        if not allowed:
            self.refuse_pixels(
                "min_pixels",
                f"no number of tiles of {side} x {side} pixels is within the bounds; lower it",
            )
        k = min(allowed, key=lambda number: abs(number - own))
        if k != own:
            part.size = type(part.size)(longest_edge=k * side)

    def frame_side(self, part: Any) -> int:
        return part.max_image_size["longest_edge"]

    def count_tokens(self, processor: Any, config: Any, width: int, height: int) -> tuple[int, int]:
        # transformers counts tokens for Idefics3 only; the text that it writes for rows and columns has them
        tiles, rows, columns = processor.image_processor.get_number_of_image_patches(height, width)
        text = processor.replace_image_token({"rows": [[rows]], "cols": [[columns]]}, 0)
        return len(processor.tokenizer(text, add_special_tokens=False).input_ids), max(tiles, 1)

    # --- forward --------------------------------------------------------------------------------------------

    def encode_media(self, model: nn.Module, features: Sequence[Features]) -> list[MediaEmbeds]:
        # here, because copies of a sharded model are made anew; weights and names stay
        embeddings = base(model).model.vision_model.embeddings
        embeddings.forward = partial(embed_patches, embeddings)
        return super().encode_media(model, features)

    def processor_batch(self, media: list[Any]) -> list[Any]:
        return [media]

    def encoder_outputs(self, model: nn.Module, kind: str, embeds: Sequence[MediaEmbeds]) -> Any:
        config = base(model).config
        vision = config.vision_config
        tile = (vision.image_size // vision.patch_size // config.scale_factor) ** 2
        embeds_NH = torch.cat([e.embeds_NH for e in embeds])
        return pooled_output(embeds_NH.view(-1, tile, embeds_NH.shape[-1]))


def places(present_BHW: Tensor, side: int) -> Tensor:
    """Places (B, N) in a grid of `side` x `side`: of the h x w patches that are present (from the top left),
    patch (i, j) has the place floor(i side / h) side + floor(j side / w); padding has place 0."""
    _, rows, columns = present_BHW.shape
    heights_B1 = present_BHW[:, :, 0].sum(1, keepdim=True).clamp(min=1)
    widths_B1 = present_BHW[:, 0, :].sum(1, keepdim=True).clamp(min=1)
    row_BH = torch.arange(rows, device=present_BHW.device) * side // heights_B1
    column_BW = torch.arange(columns, device=present_BHW.device) * side // widths_B1
    places_BHW = row_BH[:, :, None] * side + column_BW[:, None, :]
    return places_BHW.masked_fill(~present_BHW.bool(), 0).flatten(1)


def embed_patches(module: Any, pixel_values: Tensor, patch_attention_mask: Tensor) -> Tensor:
    """The forward of transformers' patch embeddings (`SmolVLMVisionEmbeddings`), (B, N, D), with `places`."""
    patches_BND = module.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
    return patches_BND + module.position_embedding(places(patch_attention_mask, module.num_patches_per_side))


def use_places_in_vllm(model: nn.Module) -> None:
    """Let the patch embeddings of vLLM's model (`Idefics2VisionEmbeddings`) look up `places`, except where
    sizes are passed instead of a mask of two dimensions."""
    for module in model.modules():
        if hasattr(module, "get_position_ids") and hasattr(module, "num_patches_per_side"):
            looked_up: Any = partial(position_ids, module, module.get_position_ids)
            module.get_position_ids = looked_up


def position_ids(
    module: Any, own: Any, patch_attention_mask: Tensor, tgt_sizes: Tensor | None = None
) -> Tensor:
    """`places` in the form of vLLM's `get_position_ids`, which is `own`."""
    if tgt_sizes is not None or patch_attention_mask.dim() != 3:
        return own(patch_attention_mask, tgt_sizes)
    found = places(patch_attention_mask, module.num_patches_per_side)
    return found.to(module.position_embedding.weight.device)
