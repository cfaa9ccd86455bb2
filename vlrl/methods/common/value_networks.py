"""The networks of critics: a head on the policy's hidden states, and a value model of its own.

Shapes: B rollouts, T completion tokens, N scored tokens, H hidden size.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from vlrl.plugins.stages import AuxTensor
from vlrl.types import TokenBatch


class ValueHead(nn.Module):
    """V(h) = w2 . tanh(W1 norm(h)) + b, 0 everywhere at first. Sends no gradient into the hidden states."""

    def __init__(self, size: int, width: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.norm = nn.LayerNorm(size, elementwise_affine=False)
            self.inner, self.outer = nn.Linear(size, width), nn.Linear(width, 1)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, hidden_NH: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(self.norm(hidden_NH.detach().float()))))[:, 0]


class ScalarHead(AuxTensor):
    """w . h_t + b, with gradient into the hidden states."""

    name = "scalar"
    in_forward = True
    reads_hidden = True

    def __init__(self, head: nn.Linear) -> None:
        self.head = head

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        return self.head(hidden_NH.float())[:, 0]


class ValueModel(nn.Module):
    """V(s_t) = w . h_t + b of a model that starts as a copy of the policy's; 0 everywhere at first."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(True)
        size = model.get_output_embeddings().weight.shape[-1]
        self.head = nn.Linear(size, 1).to(next(model.parameters()).device)
        self.begin(model)

    def begin(self, model: Any) -> None:
        """Take the weights of `model`; values are 0."""
        self.model.load_state_dict(model.state_dict())
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def values(self, policy: Any, batch: TokenBatch) -> Tensor:
        """(B, T), zero outside the loss mask; honours the autograd mode. Prompts are laid out as for the
        policy."""
        return policy.with_model(self.model).forward(batch, [ScalarHead(self.head)])["scalar"]
