"""Router replay: the experts that the engine chose, chosen again in training.

Rounding decides which expert comes k-th where two are close, so that engine and trainer send a token to
different experts and its log-probs part. With `policy.router_replay` the engine records each token's experts
in each layer (the indices alone), and the trainer computes their weights anew from its own router: the
router's gradient stays, only the choice is given. Paper: Ma et al. 2025 (R3), arXiv:2510.11370, sec. 4.

Shape legend: N tokens of a forward, E experts, K experts of a token, M layers with a router.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vlrl.plugins.registry import ConfigError
from vlrl.services.lazy import Tensor, torch

if TYPE_CHECKING:
    from vlrl.policy.encoded import EncodedPrompt
    from vlrl.policy.packing import Layout
    from vlrl.types import Rollout

OWN = -1  # in place of an index: the router chooses


class RoutingRecord:
    """The experts of a forward, by layer."""

    def __init__(self) -> None:
        self.layers: dict[int, Tensor] = {}

    def choose(self, layer: int, probs_NE: Tensor, chosen_NK: Tensor) -> Tensor:
        """Keep the router's own choice."""
        self.layers[layer] = chosen_NK
        return chosen_NK

    @property
    def chosen_NMK(self) -> Tensor:
        """All layers, on the CPU."""
        return torch.stack([self.layers[m] for m in sorted(self.layers)], dim=1).to("cpu", torch.int16)


class RoutingReplay:
    """Experts that are given for a forward; `OWN` where they are not."""

    def __init__(self, given_NMK: Tensor) -> None:
        self.given_NMK = given_NMK

    def choose(self, layer: int, probs_NE: Tensor, chosen_NK: Tensor) -> Tensor:
        """The given experts of a layer."""
        given_NK = self.given_NMK[:, layer].to(chosen_NK.device, chosen_NK.dtype)
        return torch.where(given_NK == OWN, chosen_NK, given_NK)


class _RoutedLayer:
    """Mixed into transformers' decoder layers: hands `routing` to its router. As an argument of the layer it
    is there again when the layer is recomputed in the backward pass."""

    def forward(self, *args: Any, routing: Any = None, **kwargs: Any) -> Any:
        """The layer's output."""
        module: Any = self
        module.mlp.gate.routing = routing
        layer: Any = super()
        return layer.forward(*args, **kwargs)


class _Router:
    """Mixed into transformers' routers, which give logits, weights and indices of the experts."""

    routing: RoutingRecord | RoutingReplay | None = None

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (N, E), weights (N, K) and indices (N, K)."""
        module: Any = self
        router: Any = super()
        logits_NE, weights_NK, chosen_NK = router.forward(hidden_states)
        if module.routing is None:
            return logits_NE, weights_NK, chosen_NK
        probs_NE = logits_NE.softmax(-1, dtype=torch.float)
        chosen_NK = module.routing.choose(module.place, probs_NE, chosen_NK)
        probs_NK = probs_NE.gather(-1, chosen_NK)
        if getattr(module, "norm_topk_prob", True):
            probs_NK = probs_NK / probs_NK.sum(-1, keepdim=True)
        return logits_NE, probs_NK.to(weights_NK.dtype), chosen_NK


def install(model: Any) -> None:
    """Let the routers of a transformers model record and replay. Raises ConfigError for a model without
    routers of this kind."""
    layers: list[Any] = [module for module in model.modules() if is_routed(module)]
    if not layers:
        kind = model.config.get_text_config().model_type
        raise ConfigError(
            f"policy.router_replay: {kind!r} has no routers that can be replayed (those of Qwen3-MoE, "
            "Qwen3-VL-MoE, Qwen3-Next and Qwen3.5-MoE can); set it to false"
        )
    for place, layer in enumerate(layers):
        router = layer.mlp.gate
        router.__class__ = type(type(router).__name__, (_Router, type(router)), {"place": place})
        layer.__class__ = type(type(layer).__name__, (_RoutedLayer, type(layer)), {})


def is_routed(module: Any) -> bool:
    """Whether a decoder layer has a router that gives logits, weights and indices."""
    gate = getattr(getattr(module, "mlp", None), "gate", None)
    return type(gate).__name__.endswith("TopKRouter") and hasattr(gate, "top_k")


def routing_of(rollout: Rollout, prompt: EncodedPrompt) -> np.ndarray | None:
    """The recorded experts of a rollout if they are those of its tokens (the last of which is no input)."""
    routing = rollout.routing
    return routing if routing is not None and len(routing) == len(prompt) + len(rollout) - 1 else None


def replay_of(layout: Layout, routing_B: Sequence[np.ndarray | None]) -> RoutingReplay | None:
    """The experts of a layout's tokens, from the (S, M, K) of each completion's sequence; None where no
    completion has any."""
    known = next((routing for routing in routing_B if routing is not None), None)
    if known is None:
        return None
    rows, length = layout.ids_RL.shape
    given = torch.full((rows, length, *known.shape[1:]), OWN, dtype=torch.int16)
    for r, parts in enumerate(layout.parts_R):
        for node, (b, begin, end) in zip(layout.nodes_R[r], parts):
            routing = routing_B[b]
            if routing is not None:
                given[r, node.start : node.end] = torch.from_numpy(routing[begin:end])
    return RoutingReplay(given.flatten(0, 1).to(layout.ids_RL.device))
