"""Entropy of the nucleus."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vlrl.registry import register
from vlrl.stages import Field


@register("nucleus_entropy")
@dataclass(frozen=True, kw_only=True)
class NucleusEntropy(Field):
    """Entropy (nats) of the distribution renormalised on its nucleus: the smallest set of likeliest tokens whose probability reaches `top_p`.

    Paper: Jiang et al. 2025 (SIREN), arXiv:2509.25133, sec. 4.1.  Shapes: (N, V) to (N,), with gradient; which tokens are in has none.
    Edge: top_p 1 is the plain entropy; a nucleus of one token has entropy 0.
    """

    top_p: float = 0.8
    in_forward = True

    def __post_init__(self) -> None:
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must be in (0, 1]")

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        falling_NV = logits_NV.log_softmax(-1).sort(-1, descending=True).values
        p_NV = falling_NV.detach().exp()
        inside_NV = p_NV.cumsum(-1) - p_NV < self.top_p
        kept_NV = falling_NV.masked_fill(~inside_NV, float("-inf")).log_softmax(-1)
        return -(kept_NV.exp() * kept_NV.masked_fill(~inside_NV, 0.0)).sum(-1)
