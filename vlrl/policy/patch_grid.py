"""Places of a picture's patches in a tower that learns one embedding for each place of a square grid (SigLIP
as in Idefics3 and SmolVLM).

transformers 5.19 and vLLM 0.32 look for them with `bucketize`, among fractions that they round in different
ways: transformers to the type of the pixels, vLLM to float32 by another formula. A fraction that falls short
of its boundary counts for the place before. Of the 27 rows and columns of SmolVLM2 2.2B, transformers in
bfloat16 moves numbers 15, 17, 19, 21, 23 and 25 back by one, vLLM number 10, transformers in float32 none.
Whole numbers give the same places in every type and on every device, so engine and trainer see the same
picture. (transformers, issue 41190 and pull request 47133.)

Shape legend: B pictures or tiles, H x W patches, N = H W, D size of an embedding.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from vlrl.services.lazy import Tensor, torch


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


def use_in_transformers(embeddings: Any) -> None:
    """Let a model's patch embeddings look up `places`. Weights and names stay; a second call changes
    nothing."""
    embeddings.forward = partial(embed_patches, embeddings)


def use_in_vllm(embeddings: Any) -> None:
    """The same for vLLM's patch embeddings (`Idefics2VisionEmbeddings`), except where a model passes sizes
    instead of a mask of two dimensions."""
    own = embeddings.get_position_ids

    def get_position_ids(patch_attention_mask: Tensor, tgt_sizes: Tensor | None = None) -> Tensor:
        if tgt_sizes is not None or patch_attention_mask.dim() != 3:
            given: Tensor = own(patch_attention_mask, tgt_sizes)
            return given
        return places(patch_attention_mask, embeddings.num_patches_per_side).to(
            embeddings.position_embedding.weight.device
        )

    embeddings.get_position_ids = get_position_ids
