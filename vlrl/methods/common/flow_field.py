"""Flow fields of a model's states: a small network that predicts the velocity from noise to a state, given
the state before it; and the states themselves.

Shapes: B rollouts, T completion tokens, N states, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vlrl.plugins.stages import AuxTensor
from vlrl.plugins.views import PolicyView
from vlrl.types import TokenBatch

FREQUENCIES = 64


def embedded(value_N: Tensor) -> Tensor:
    """(N, 2 FREQUENCIES) sines and cosines of numbers."""
    rates = torch.exp(
        -math.log(10000.0)
        * torch.arange(FREQUENCIES, device=value_N.device, dtype=torch.float32)
        / FREQUENCIES
    )
    angles_NF = value_N[:, None].float() * rates
    return torch.cat([angles_NF.cos(), angles_NF.sin()], -1)


class Block(nn.Module):
    """A residual block whose norm, shift and gate depend on the condition; the identity at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        self.gates = nn.Linear(width, 3 * width)
        nn.init.zeros_(self.gates.weight)
        nn.init.zeros_(self.gates.bias)

    def forward(self, x_NW: Tensor, y_NW: Tensor) -> Tensor:
        shift_NW, scale_NW, gate_NW = self.gates(nn.functional.silu(y_NW)).chunk(3, -1)
        h_NW = self.norm(x_NW) * (1 + scale_NW) + shift_NW
        return x_NW + gate_NW * self.outer(nn.functional.silu(self.inner(h_NW)))


class FlowField(nn.Module):
    """f(x_t, t, c, l): the velocity x - e of x_t = t x + (1 - t) e for a state x, noise e, the state c
    before it
    and the depth l of its layer; 0 everywhere at first."""

    def __init__(self, size: int, blocks: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.state, self.context = nn.Linear(size, size), nn.Linear(size, size)
            self.time, self.depth = nn.Linear(2 * FREQUENCIES, size), nn.Linear(2 * FREQUENCIES, size)
            self.blocks = nn.ModuleList([Block(size) for _ in range(blocks)])
            self.norm, self.out = nn.RMSNorm(size), nn.Linear(size, size)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x_NH: Tensor, t_N: Tensor, context_NH: Tensor, depth: float) -> Tensor:
        depth_N = torch.full_like(t_N, depth)
        y_NH = self.context(context_NH) + self.time(embedded(t_N)) + self.depth(embedded(depth_N))
        h_NH = self.state(x_NH)
        for block in self.blocks:
            h_NH = block(h_NH, y_NH)
        return self.out(self.norm(h_NH))

    def deviation(
        self, x_NH: Tensor, context_NH: Tensor, t_N: Tensor, depth: float, noise_NH: Tensor
    ) -> Tensor:
        """(N,) the velocity deviation of states: mean over H of (f(x_t, t, c, l) - (x - e))^2."""
        mixed_NH = t_N[:, None] * x_NH + (1 - t_N[:, None]) * noise_NH
        error_NH = self(mixed_NH, t_N, context_NH, depth) - (x_NH - noise_NH)
        return error_NH.square().mean(-1)


class States(AuxTensor):
    """The states that the forward pass hands to aux tensors."""

    name = "states"
    in_forward = True
    reads_hidden = True

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        return hidden_NH


def decoder(model: Any) -> Any:
    """The stack of decoder layers of a language model, also inside a vision-language model."""
    while hasattr(model, "module"):
        model = model.module
    found = model.get_decoder()
    return getattr(found, "language_model", found)


def states_of(policy: PolicyView, batch: TokenBatch, layers: Sequence[int]) -> list[Tensor]:
    """(B, T, H) per layer, float32, without gradient: its state before each completion token, from the
    prompt's last token on. One forward pass per layer: hooks put its output in the last one's place."""
    stack, found = decoder(policy.model), []
    aux: Any = States()
    for layer in layers:
        kept: list[Tensor] = []

        def keep(module: Any, inputs: Any, output: Any, kept: list[Tensor] = kept) -> None:
            kept.append(output[0] if isinstance(output, tuple) else output)

        def put(module: Any, inputs: Any, output: Any, kept: list[Tensor] = kept) -> Tensor:
            return kept.pop()

        hooks = [
            stack.layers[layer].register_forward_hook(keep),
            stack.norm.register_forward_hook(put),
        ]
        try:
            with torch.no_grad():
                found.append(policy.forward(batch, [aux])["states"].float())
        finally:
            for hook in hooks:
                hook.remove()
    return found
