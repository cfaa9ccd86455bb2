"""What a family's pictures and layers cost, in tokens and saved numbers: counts that `vlrl plan` computes
with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PictureCost:
    """What a picture costs: `tokens` of the prompt, `patches` rows of the vision tower, of which `largest`
    attend to each other. A tower of convolutions has no rows: `flops` of a forward pass, and the numbers that
    it saves for the backward pass, `saved` and, with checkpointing, `saved_inputs`."""

    tokens: int = 0
    patches: int = 0
    largest: int = 0
    flops: float = 0.0
    saved: int = 0
    saved_inputs: int = 0


@dataclass(frozen=True)
class SavedTensors:
    """Tensors that one layer saves for the backward pass, per token, of the transformers 5.19 modules.

    Of width H in float32 throughout (`hidden`) and under autocast in float32 and in the products' type
    (`hidden_float`, `hidden_cast`), of the MLP's width (`inner`), `statistics` of its norms (1 number for an
    RMSNorm, 2 for a LayerNorm), `qk_norm` 0 or the bytes per number of queries and keys under autocast,
    `fused` whether one product makes queries, keys and values, `float_residual` whether the residual stream
    is in float32 under autocast. tests/plan/test_saved_bytes.py counts them.
    """

    hidden: int
    hidden_float: int
    hidden_cast: int
    inner: int
    statistics: int
    qk_norm: int = 0
    fused: bool = False
    float_residual: bool = True
    streams: int = 1  # hidden states that a layer is given

    @property
    def attention(self) -> int:
        """Count of saved tensors of the heads' total width."""
        return 6 if self.fused else 4


# Llama, Qwen2 and their multimodal descendants: RMSNorm, gated MLP
DECODER = SavedTensors(hidden=6, hidden_float=4, hidden_cast=5, inner=4, statistics=2)
# the same with norms of queries and keys (Qwen3)
DECODER_QK_NORM = SavedTensors(hidden=6, hidden_float=4, hidden_cast=5, inner=4, statistics=2, qk_norm=6)
SIGLIP = SavedTensors(hidden=4, hidden_float=2, hidden_cast=4, inner=2, statistics=4)
