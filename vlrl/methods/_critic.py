"""A small head on the policy's hidden states: a critic, or a reward model of tokens.

Shape legend: N tokens, H hidden size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from vlrl.run import Run


class Head(nn.Module):
    """V(h) = w2 . tanh(W1 norm(h)) + b, starting at 0 everywhere. Reads hidden states without sending gradients into them."""

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


def critic_of(run: Run, width: int = 64) -> Head:
    """The run's head, made when it is first asked for."""
    if "critic" not in run.extras:
        size = run.policy.model.get_output_embeddings().weight.shape[-1]
        run.extras["critic"] = Head(size, width, run.seed).to(run.policy.device)
    return run.extras["critic"]
