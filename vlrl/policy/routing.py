"""The routers of a mixture of experts: the engine's choice replayed in training, and how even the load is.

Rounding decides which expert comes k-th where two are close, so that engine and trainer send a token to
different experts and its log-probs part. With `policy.router_replay` the engine records the indices of each
token's experts, and the trainer computes their weights anew from its own router: its gradient stays, only the
choice is given. Paper: Ma et al. 2025 (R3), arXiv:2510.11370, sec. 4. The loss term `router_balance` reads
how evenly the tokens of a micro-batch are spread over the experts.

Shape legend: N tokens of a forward, E experts, K experts of a token, M layers with a router.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vlrl.plugins.registry import ConfigError
from vlrl.policy.mixins import mix_in
from vlrl.services.lazy import Tensor, torch

if TYPE_CHECKING:
    from vlrl.policy.encoded import EncodedPrompt
    from vlrl.policy.packing import Layout
    from vlrl.types import Rollout

OWN = -1  # in place of an index: the router chooses


class Routing:
    """What the routers of one forward are told, and what they tell.

    `given_NMK`: the experts of the tokens, `OWN` where the router chooses; None: it always does. `real_N`:
    which tokens count for the balance; None: the balance is not measured.
    """

    def __init__(self, given_NMK: Tensor | None = None, real_N: Tensor | None = None) -> None:
        self.given_NMK = given_NMK
        self.real_N = real_N
        self.chosen: dict[int, Tensor] = {}
        self.balance: dict[int, Tensor] = {}

    def choose(self, layer: int, probs_NE: Tensor, chosen_NK: Tensor) -> Tensor:
        """A layer's experts, (N, K), from its router's probabilities and own choice."""
        if self.given_NMK is not None:
            given_NK = self.given_NMK[:, layer].to(chosen_NK.device, chosen_NK.dtype)
            chosen_NK = torch.where(given_NK == OWN, chosen_NK, given_NK)
        self.chosen[layer] = chosen_NK
        if self.real_N is not None:
            self.balance[layer] = expert_balance(probs_NE, chosen_NK, self.real_N.to(probs_NE.device))
        return chosen_NK

    @property
    def chosen_NMK(self) -> Tensor:
        """The experts of all layers, on the CPU."""
        return torch.stack([self.chosen[m] for m in sorted(self.chosen)], dim=1).to("cpu", torch.int16)

    @property
    def balance_2(self) -> Tensor:
        """`expert_balance`, the mean over layers."""
        return torch.stack([self.balance[m] for m in sorted(self.balance)]).mean(0)


def expert_balance(probs_NE: Tensor, chosen_NK: Tensor, real_N: Tensor) -> Tensor:
    """(2,): the balancing loss E / K sum_e f_e P_e, and the busiest expert's load E / K max_e f_e.

    f_e is the number of choices of expert e per token, P_e its mean probability; both numbers are 1 for an
    even load. The gradient goes through P. Paper: Fedus et al. 2021, arXiv:2101.03961, eq. 4 to 6, divided by
    K as Megatron-LM does.
    """
    experts, k = probs_NE.shape[1], chosen_NK.shape[1]
    weight_N = real_N.to(probs_NE.dtype)
    count = weight_N.sum().clamp(min=1)
    load_E = probs_NE.new_zeros(experts).index_add_(0, chosen_NK.flatten(), weight_N.repeat_interleave(k))
    load_E = load_E * (experts / k) / count
    return torch.stack([load_E @ (weight_N @ probs_NE) / count, load_E.max()])


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

    routing: Routing | None = None

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


def install(model: Any, what: str) -> None:
    """Let the routers of a transformers model record and replay; once is enough. Raises ConfigError, about
    the setting `what`, for a model without routers of this kind."""
    layers: list[Any] = [module for module in model.modules() if is_routed(module)]
    if not layers:
        kind = model.config.get_text_config().model_type
        raise ConfigError(
            f"{what}: {kind!r} has no routers that can be read (those of Qwen3-MoE, Qwen3-VL-MoE, "
            "Qwen3-Next and Qwen3.5-MoE can); leave it out"
        )
    for place, layer in enumerate(layers):
        mix_in(layer.mlp.gate, _Router, place=place)
        mix_in(layer, _RoutedLayer)


def is_routed(module: Any) -> bool:
    """Whether a decoder layer has a router that gives logits, weights and indices."""
    gate = getattr(getattr(module, "mlp", None), "gate", None)
    return type(gate).__name__.endswith("TopKRouter") and hasattr(gate, "top_k")


def routing_of(rollout: Rollout, prompt: EncodedPrompt) -> np.ndarray | None:
    """The recorded experts of a rollout if they are those of its tokens (the last of which is no input)."""
    routing = rollout.routing
    return routing if routing is not None and len(routing) == len(prompt) + len(rollout) - 1 else None


def replay_of(layout: Layout, routing_B: Sequence[np.ndarray | None]) -> Tensor | None:
    """The experts (N, M, K) of a layout's tokens, from the (S, M, K) of each completion's sequence; None
    where no completion has any."""
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
    return given.flatten(0, 1).to(layout.ids_RL.device)


def real_tokens(layout: Layout) -> Tensor:
    """(N,): which tokens of a layout are no padding."""
    real_RL = torch.zeros_like(layout.ids_RL, dtype=torch.bool)
    for r, nodes in enumerate(layout.nodes_R):
        for node in nodes:
            real_RL[r, node.start : node.end] = True
    return real_RL.flatten()
