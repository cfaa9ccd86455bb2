"""Bytes that one layer keeps for the backward pass, per token: counts of saved tensors by width, times the
size of their type.

A layer of width H with attention heads of total width A (keys and values: K, repeated to A before the
product) and an MLP of width I saves, in float32 throughout, `hidden` H + 4 A (queries, keys, values, output)
+ `inner` I numbers per token; where one product makes queries, keys and values, the values are a view of it
and keep its 3 A numbers alive (6 A in all). Under autocast to a 16-bit type, the residual stream and the
norms stay in float32 (`hidden_float` H numbers), and every matrix product saves its own 16-bit copy of its
input (`hidden_cast` H). In addition: two or four statistics of norms, one log-sum-exp per head, and the
attention mask, which scaled_dot_product_attention turns into numbers of the products' type in every layer
(rows x L numbers per token).

The counts are those of the transformers 5.19 modules; tests/plan/test_saved_bytes.py counts what these
modules save.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Block:
    """Counts of saved tensors of one layer: of width H in float32 mode (`hidden`) and under autocast
    (`hidden_float`, `hidden_cast`), of width I (`inner`), `statistics` of its norms (1 number for an RMSNorm,
    2 for a LayerNorm), `qk_norm` 0 or the bytes per number of A + K under autocast, `fused` whether one
    product makes queries, keys and values.
    """

    hidden: int
    hidden_float: int
    hidden_cast: int
    inner: int
    statistics: int
    qk_norm: int = 0
    fused: bool = False

    @property
    def attention(self) -> int:
        """Count of saved tensors of the heads' total width A."""
        return 6 if self.fused else 4


BLOCKS = {
    "decoder": Block(
        hidden=6, hidden_float=4, hidden_cast=5, inner=4, statistics=2
    ),  # Llama, Qwen2 and their VL descendants: RMSNorm, gated MLP
    "decoder_qk_norm": Block(
        hidden=6, hidden_float=4, hidden_cast=5, inner=4, statistics=2, qk_norm=6
    ),  # Qwen3
    "gemma3": Block(hidden=10, hidden_float=8, hidden_cast=5, inner=4, statistics=4, qk_norm=8),
    "tower_rms": Block(
        hidden=7, hidden_float=2, hidden_cast=6, inner=4, statistics=2, fused=True
    ),  # Qwen2.5-VL
    "tower_quick_gelu": Block(
        hidden=5, hidden_float=0, hidden_cast=5, inner=3, statistics=4, fused=True
    ),  # Qwen2-VL
    "tower_gelu": Block(
        hidden=5, hidden_float=0, hidden_cast=5, inner=2, statistics=4, fused=True
    ),  # Qwen3-VL
    "siglip": Block(
        hidden=4, hidden_float=2, hidden_cast=4, inner=2, statistics=4
    ),  # Gemma 3, LLaVA-OneVision, SmolVLM
    "intern_vit": Block(hidden=6, hidden_float=2, hidden_cast=6, inner=2, statistics=4),
}
TEXT_BLOCKS = {"qwen3": "decoder_qk_norm", "qwen3_vl_text": "decoder_qk_norm", "gemma3_text": "gemma3"}
TOWER_BLOCKS = {
    "qwen2_5_vl_vision": "tower_rms",
    "qwen2_vl_vision": "tower_quick_gelu",
    "qwen3_vl_vision": "tower_gelu",
    "internvl_vision": "intern_vit",
}


@dataclass(frozen=True)
class Width:
    """Widths of one layer: `hidden` H, `queries` A, `keys` K, `inner` I, `heads`; `block` names its
    `Block`."""

    hidden: int
    queries: int
    keys: int
    inner: int
    heads: int
    block: str

    @property
    def weights(self) -> int:
        """Numbers in the layer's matrices (biases and norms are left out)."""
        gated = BLOCKS[self.block].inner == 4
        return 2 * self.hidden * (self.queries + self.keys) + (3 if gated else 2) * self.hidden * self.inner


def saved_per_token(width: Width, size: int, rank: int = 0) -> float:
    """Bytes that a layer saves per token, without its mask.

    Args: `size` is the number of bytes of the products' type (4: no autocast). `rank` is that of LoRA
    adapters on all of the layer's matrices (0: the layer itself is trained): frozen RMSNorms do not save
    their normalised input, and each of the seven adapters saves r numbers.
    """
    block, hidden = BLOCKS[width.block], width.hidden
    frozen = block.statistics if rank else 0
    inside = block.attention * width.queries + block.inner * width.inner
    if size == FLOAT:
        numbers = FLOAT * ((block.hidden - frozen) * hidden + inside)
        normed = (FLOAT if rank else 2 * FLOAT) * (width.queries + width.keys) if block.qk_norm else 0
    else:
        numbers = FLOAT * (block.hidden_float - frozen) * hidden + size * (
            block.hidden_cast * hidden + inside
        )
        normed = (min(FLOAT, block.qk_norm) if rank else block.qk_norm) * (width.queries + width.keys)
    return numbers + normed + FLOAT * (block.statistics + width.heads) + 7 * rank * size


def checkpoint_per_token(width: Width, size: int) -> float:
    """Bytes that a layer saves per token if it is recomputed: its input. Towers without a float32 residual
    stream keep it in the products' type."""
    return width.hidden * (FLOAT if BLOCKS[width.block].hidden_float > 2 or width.block == "siglip" else size)


def text_width(text: Any) -> Width:
    """The widths of a language model's layers, from its transformers config."""
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    keys = getattr(text, "num_key_value_heads", None) or heads
    return Width(
        text.hidden_size,
        heads * size,
        keys * size,
        text.intermediate_size,
        heads,
        TEXT_BLOCKS.get(text.model_type, "decoder"),
    )


def tower_width(vision: Any) -> Width:
    """The widths of a vision tower's layers, from its transformers config."""
    heads = getattr(vision, "num_heads", None) or vision.num_attention_heads
    hidden = getattr(vision, "embed_dim", None) or vision.hidden_size
    inner = getattr(vision, "intermediate_size", None) or int(hidden * vision.mlp_ratio)
    return Width(hidden, hidden, hidden, inner, heads, TOWER_BLOCKS.get(vision.model_type, "siglip"))


def tower_depth(vision: Any) -> int:
    """Number of layers of a vision tower."""
    return getattr(vision, "depth", None) or vision.num_hidden_layers
