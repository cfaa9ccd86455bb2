"""The last hidden state."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vlrl.registry import register
from vlrl.stages import Field


@register("hidden")
@dataclass(frozen=True, kw_only=True)
class Hidden(Field):
    """h_t, the last layer's state that predicts token t, without gradient.

    Paper: vlrl original (an input to others, for instance arXiv:2509.23808).  Shapes: (N, H).  As large as hidden size x tokens: for signals, not
    for long runs.
    """

    in_forward = True
    reads_hidden = True

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        return hidden_NH.detach().float()
