"""Flow fields of a model's states: a small network that predicts the velocity from noise to a state, given
the state before it; and the states themselves.

Shapes: B rollouts, T completion tokens, N states, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vlrl.methods.core.aux_tensor import Hidden
from vlrl.plugins.views import PolicyView
from vlrl.services.lazy import Tensor, nn, torch
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


def network(size: int, blocks: int, seed: int) -> nn.ModuleDict:
    """The weights of a flow field: residual blocks whose norm, shift and gate depend on the condition, the
    identity at first, and an output of 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parts: dict[str, Any] = {"state": nn.Linear(size, size), "context": nn.Linear(size, size)}
        parts |= {name: nn.Linear(2 * FREQUENCIES, size) for name in ("time", "depth")}
        made = []
        for _ in range(blocks):
            inner, outer, gates = (nn.Linear(size, width) for width in (size, size, 3 * size))
            norm: nn.Module = nn.RMSNorm(size)
            made.append(nn.ModuleDict({"norm": norm, "inner": inner, "outer": outer, "gates": gates}))
        parts |= {"blocks": nn.ModuleList(made), "norm": nn.RMSNorm(size), "out": nn.Linear(size, size)}
    for last in (parts["out"], *(block["gates"] for block in made)):
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return nn.ModuleDict(parts)


class FlowField:
    """f(x_t, t, c, l): the velocity x - e of x_t = t x + (1 - t) e for a state x, noise e, the state c before
    it and the depth l of its layer; 0 everywhere at first. `net` has the weights."""

    def __init__(self, size: int, blocks: int, seed: int, device: Any = "cpu") -> None:
        self.net: Any = network(size, blocks, seed).to(device)

    def velocity(self, x_NH: Tensor, t_N: Tensor, context_NH: Tensor, depth: float) -> Tensor:
        """(N, H) the predicted velocity of mixed states."""
        net, depth_N = self.net, torch.full_like(t_N, depth)
        y_NH = net["context"](context_NH) + net["time"](embedded(t_N)) + net["depth"](embedded(depth_N))
        h_NH = net["state"](x_NH)
        for block in net["blocks"]:
            shift_NH, scale_NH, gate_NH = block["gates"](nn.functional.silu(y_NH)).chunk(3, -1)
            inner_NH = block["inner"](block["norm"](h_NH) * (1 + scale_NH) + shift_NH)
            h_NH = h_NH + gate_NH * block["outer"](nn.functional.silu(inner_NH))
        predicted_NH: Tensor = net["out"](net["norm"](h_NH))
        return predicted_NH

    def deviation(
        self, x_NH: Tensor, context_NH: Tensor, t_N: Tensor, depth: float, noise_NH: Tensor
    ) -> Tensor:
        """(N,) the velocity deviation of states: mean over H of (f(x_t, t, c, l) - (x - e))^2."""
        mixed_NH = t_N[:, None] * x_NH + (1 - t_N[:, None]) * noise_NH
        error_NH = self.velocity(mixed_NH, t_N, context_NH, depth) - (x_NH - noise_NH)
        return error_NH.square().mean(-1)


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
                found.append(policy.forward(batch, [Hidden()])["hidden"])
        finally:
            for hook in hooks:
                hook.remove()
    return found
