"""Bytes that one layer keeps for the backward pass, per token: counts of saved tensors by width, times the
size of their type.

With hidden width H, attention width A (keys and values: K, repeated to A) and MLP width I, a layer saves per
token

    float32:    hidden H + 4 A (queries, keys, values, output; 6 A where one product makes the first three,
                of which the values are a view) + inner I numbers
    autocast:   in addition hidden_float H in float32 (residual stream, norms), and a 16-bit copy of the
                input of every matrix product, hidden_cast H
    both:       two or four statistics of norms, one log-sum-exp per head, and the attention mask, which
                scaled_dot_product_attention turns into the products' type (rows x L numbers per token)

The counts (`SavedTensors`) stand with the families; tests/plan/test_saved_bytes.py counts what modules save.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

from vlrl.plugins.registry import shipped
from vlrl.policy.costs import DECODER, SIGLIP, SavedTensors
from vlrl.policy.family import Family, inner_width

FLOAT = 4  # bytes


@cache
def saved_tensors() -> dict[str, SavedTensors]:
    """The counts of layers, by transformers' model type, as the families state them."""
    families: Collection[Any] = shipped(Family).values()
    return {kind: saves for family in families for kind, saves in family.saved_tensors.items()}


@dataclass(frozen=True)
class Width:
    """Widths of one layer: `hidden` H, `queries` A, `keys` K, `inner` I, `heads`; `saves` counts its saved
    tensors."""

    hidden: int
    queries: int
    keys: int
    inner: int
    heads: int
    saves: SavedTensors

    @property
    def weights(self) -> int:
        """Numbers in the layer's matrices (biases and norms are left out)."""
        gated = self.saves.inner == 4
        return 2 * self.hidden * (self.queries + self.keys) + (3 if gated else 2) * self.hidden * self.inner


def saved_per_token(width: Width, size: int, rank: int = 0) -> float:
    """Bytes that a layer saves per token, without its mask.

    Args: `size` is the number of bytes of the products' type (4: no autocast). `rank` is that of LoRA
    adapters on all of the layer's matrices (0: the layer itself is trained): frozen RMSNorms do not save
    their normalised input, and each of the seven adapters saves r numbers.
    """
    saves, hidden = width.saves, width.hidden
    frozen = saves.statistics if rank else 0
    inside = saves.attention * width.queries + saves.inner * width.inner
    if size == FLOAT:
        numbers = FLOAT * ((saves.hidden - frozen) * hidden + inside)
        normed = (FLOAT if rank else 2 * FLOAT) * (width.queries + width.keys) if saves.qk_norm else 0
    else:
        numbers = FLOAT * (saves.hidden_float - frozen) * hidden + size * (
            saves.hidden_cast * hidden + inside
        )
        normed = (min(FLOAT, saves.qk_norm) if rank else saves.qk_norm) * (width.queries + width.keys)
    return numbers + normed + FLOAT * (saves.statistics + width.heads) + 7 * rank * size


def checkpoint_per_token(width: Width, size: int) -> float:
    """Bytes that a layer saves per token if it is recomputed: its input. Towers without a float32 residual
    stream keep it in the products' type."""
    return width.saves.streams * width.hidden * (FLOAT if width.saves.float_residual else size)


def text_width(text: Any) -> Width:
    """The widths of a language model's layers, from its transformers config."""
    heads, first = text.num_attention_heads, text.per_layer_config[0]
    size = getattr(first, "head_dim", None) or text.hidden_size // heads
    keys = getattr(first, "num_key_value_heads", None) or heads
    return Width(
        text.hidden_size,
        heads * size,
        keys * size,
        inner_width(text),
        heads,
        saved_tensors().get(text.model_type, DECODER),
    )


def tower_width(vision: Any) -> Width | None:
    """The widths of a vision tower's layers, from its transformers config; None for one of convolutions."""
    heads = getattr(vision, "num_heads", None) or getattr(vision, "num_attention_heads", None)
    if heads is None:
        return None
    hidden = getattr(vision, "embed_dim", None) or vision.hidden_size
    inner = getattr(vision, "intermediate_size", None) or int(hidden * vision.mlp_ratio)
    return Width(hidden, hidden, hidden, inner, heads, saved_tensors().get(vision.model_type, SIGLIP))


def tower_depth(vision: Any) -> int:
    """Number of layers of a vision tower; 0 for one of convolutions."""
    return next((int(n) for name in ("depth", "num_hidden_layers") if (n := getattr(vision, name, 0))), 0)
