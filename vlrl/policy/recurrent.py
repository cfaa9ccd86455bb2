"""Layers that carry a state from token to token (linear attention, short convolutions) on packed rows,
prefills and decode steps (Qwen3-Next, Qwen3.5, LFM2).

Such a layer has no mask: it begins every node of a tree (`vlrl.policy.packing`) with the state that the last
token of the node's parent left, and a row with an empty one. A node is a sequence of a call of transformers'
own layer; nodes whose parents are done run together. transformers passes `seq_idx` on to all of these layers,
and nothing else.

Shape legend: R rows, L tokens of a row, H hidden size, B nodes of a call, T tokens of a node, C channels of a
convolution, K its width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from vlrl.plugins.registry import ConfigError
from vlrl.policy.mixins import mix_in
from vlrl.policy.packing import Node
from vlrl.services.lazy import Tensor, nn, torch

# transformers' layers by class name: the argument that takes their cache
CACHE_ARGUMENT = {
    "Qwen3NextGatedDeltaNet": "cache_params",
    "Qwen3_5GatedDeltaNet": "cache_params",
    "Qwen3_5MoeGatedDeltaNet": "cache_params",
    "Lfm2ShortConv": "past_key_values",
    "Lfm2MoeShortConv": "past_key_values",
}
LAYER_TYPES = ("linear_attention", "conv")  # of such layers, in transformers' configs
ATTENTION_TYPES = ("full_attention", "sliding_attention")


class LayerState(NamedTuple):
    """What a recurrent layer carries: the last inputs (B, C, K) of its convolution, and the state of its
    linear attention (B, ...), None where it has none."""

    conv_BCK: Tensor
    recurrent_B: Tensor | None

    def map(self, change: Callable[[Tensor], Tensor]) -> LayerState:
        """The state with both tensors changed."""
        return LayerState(
            change(self.conv_BCK), None if self.recurrent_B is None else change(self.recurrent_B)
        )


def joined(states: Sequence[LayerState]) -> LayerState:
    """The states of several calls as one."""
    recurrent = [state.recurrent_B for state in states if state.recurrent_B is not None]
    return LayerState(torch.cat([s.conv_BCK for s in states]), torch.cat(recurrent) if recurrent else None)


class LayerCache:
    """The part of transformers' cache that a recurrent layer asks for: `before` comes in, `after` leaves.
    Nothing is changed in place, so that gradients flow from a branch into its prompt."""

    record_past = True  # no update in place of the convolution's inputs

    def __init__(self, before: LayerState | None = None) -> None:
        self.before = before
        self.conv: Tensor | None = None
        self.recurrent: Tensor | None = None

    @property
    def after(self) -> LayerState:
        """The state after the call's last token."""
        assert self.conv is not None
        return LayerState(self.conv, self.recurrent)

    @property
    def layers(self) -> LayerCache:
        """By index of the layer: this one."""
        return self

    def __getitem__(self, layer: int) -> LayerCache:
        return self

    @property
    def recurrent_states(self) -> list[Tensor | None]:
        """The linear attention's state before the call."""
        return [None if self.before is None else self.before.recurrent_B]

    def has_previous_state(self, layer_idx: int, state_idx: int = 0) -> bool:
        """Whether the call continues."""
        return self.before is not None

    def update_conv_state(self, new_BCT: Tensor, layer_idx: int, conv_kernel_size: int) -> Tensor:
        """The convolution's inputs, with those that came before."""
        full = new_BCT if self.before is None else torch.cat([self.before.conv_BCK, new_BCT], dim=-1)
        missing = max(0, conv_kernel_size - full.shape[-1])
        self.conv = nn.functional.pad(full, (missing, 0))[..., -conv_kernel_size:]
        return full

    def update_recurrent_state(self, state_B: Tensor, layer_idx: int) -> Tensor:
        """Take the linear attention's state after the call."""
        self.recurrent = state_B
        return state_B


class Rows(Protocol):
    """How a recurrent layer runs over the tokens of a forward."""

    def run(self, layer: int, step: Callable[[Tensor, LayerCache], Tensor], hidden_RLH: Tensor) -> Tensor:
        """The layer's output (R, L, H); `step` runs transformers' layer over sequences of tokens."""
        ...


Place: TypeAlias = "tuple[int, int]"  # of a node: its row, and its number in the row


class _Call(NamedTuple):
    """Nodes that run together: their tokens' places in the flattened rows (R L: padding), the parents whose
    states they continue, whether their own states are needed."""

    nodes: tuple[Place, ...]
    parents: tuple[Place, ...] | None
    places_BT: Tensor
    kept: bool


class States:
    """Packed rows, or the prompts of a prefill, whose states at their ends are kept in `after` (by layer) if
    `keep`."""

    def __init__(self, nodes_R: Sequence[Sequence[Node]], shape: Sequence[int], keep: bool = False) -> None:
        self.rows, self.length = shape
        self.keep = keep
        self.after: dict[int, LayerState] = {}
        self.calls = self._calls(nodes_R)
        places = torch.cat([call.places_BT.flatten() for call in self.calls])
        back = torch.full((self.rows * self.length + 1,), len(places))
        back[places] = torch.arange(len(places))
        self.back_RL = back[:-1]  # of each token: its place among the calls' outputs; the last one is zero

    def _calls(self, nodes_R: Sequence[Sequence[Node]]) -> list[_Call]:
        """The calls in an order in which parents come first. Nodes whose states are needed run with others
        of their length; the others are padded on the right, where nothing follows."""
        groups: dict[tuple[int, bool, int, bool], list[tuple[Place, Place, range]]] = {}
        for r, nodes in enumerate(nodes_R):
            for n, node in enumerate(nodes):
                above = [m for m in range(n) if nodes[m].end <= node.start < nodes[m].subtree_end]
                parent = next((m for m in reversed(above) if nodes[m].end > nodes[m].start), None)
                kept, size = self.keep or node.subtree_end > node.end, node.end - node.start
                if size:
                    key = (len(above), parent is not None, size if kept else 0, kept)
                    tokens = range(r * self.length + node.start, r * self.length + node.end)
                    groups.setdefault(key, []).append(((r, n), (r, n if parent is None else parent), tokens))
        calls = []
        for (_, continues, _, kept), members in sorted(groups.items(), key=lambda item: item[0]):
            nodes_B, parents_B, tokens_B = zip(*members)
            places_BT = torch.full((len(members), max(map(len, tokens_B))), self.rows * self.length)
            for b, tokens in enumerate(tokens_B):
                places_BT[b, : len(tokens)] = torch.arange(tokens.start, tokens.stop)
            calls.append(_Call(nodes_B, parents_B if continues else None, places_BT, kept))
        return calls

    def _move(self, device: torch.device) -> None:
        """Put the places on a device, in the first layer of a forward."""
        if self.back_RL.device != device:
            self.back_RL = self.back_RL.to(device)
            self.calls = [call._replace(places_BT=call.places_BT.to(device)) for call in self.calls]

    def run(self, layer: int, step: Callable[[Tensor, LayerCache], Tensor], hidden_RLH: Tensor) -> Tensor:
        """`Rows.run`."""
        width = hidden_RLH.shape[-1]
        self._move(hidden_RLH.device)
        flat = torch.cat([hidden_RLH.reshape(-1, width), hidden_RLH.new_zeros(1, width)])
        states: dict[Place, LayerState] = {}
        out = []
        for nodes, parents, places_BT, kept in self.calls:
            before = None if parents is None else joined([states[parent] for parent in parents])
            cache = LayerCache(before)
            out.append(step(flat[places_BT], cache).flatten(0, 1))
            if kept:
                states |= {
                    node: cache.after.map(lambda x, b=b: x[b : b + 1])  # type: ignore[misc]  # b is a default
                    for b, node in enumerate(nodes)
                }
        if self.keep:
            self.after[layer] = joined([states[r, 0] for r in range(self.rows)])
        done = torch.cat([*out, out[0].new_zeros(1, width)])
        return done[self.back_RL].view(self.rows, self.length, width)


class SequenceStates:
    """The states of running sequences, by layer, moved on by every decode step."""

    def __init__(self) -> None:
        self.states: dict[int, LayerState] = {}

    def run(self, layer: int, step: Callable[[Tensor, LayerCache], Tensor], hidden_RLH: Tensor) -> Tensor:
        """`Rows.run`."""
        cache = LayerCache(self.states[layer])
        out = step(hidden_RLH, cache)
        self.states[layer] = cache.after
        return out


class _Recurrent:
    """Mixed into transformers' recurrent layers: runs over the rows that `seq_idx` holds."""

    def forward(
        self, hidden_states: Tensor, *args: Any, seq_idx: Rows | None = None, **kwargs: Any
    ) -> Tensor:
        """The layer's output, (R, L, H)."""
        plain: Callable[..., Tensor] = super().forward  # type: ignore[misc]  # that of transformers' layer
        if not hasattr(seq_idx, "run"):
            return plain(hidden_states, *args, seq_idx=seq_idx, **kwargs)
        assert seq_idx is not None
        module: Any = self

        def step(hidden_BTH: Tensor, cache: LayerCache) -> Tensor:
            return plain(hidden_states=hidden_BTH, **{module.cache_argument: cache})

        return seq_idx.run(module.layer_idx, step, hidden_states)


def install(model: Any) -> None:
    """Let the recurrent layers of a transformers model run over packed rows. Raises ConfigError for a model
    with layers of other kinds."""
    text = model.config.get_text_config()
    kinds = getattr(text, "layer_types", None) or []
    recurrent = [module for module in model.modules() if type(module).__name__ in CACHE_ARGUMENT]
    other = sorted(set(kinds) - {*ATTENTION_TYPES, *LAYER_TYPES})
    if not other and len(recurrent) < sum(kind in LAYER_TYPES for kind in kinds):
        other = [kind for kind in LAYER_TYPES if kind in kinds]
    if other:
        raise ConfigError(
            f"policy: {text.model_type!r} has {', '.join(other)} layers that no engine here and no layout "
            "runs; full and sliding attention, the linear attention of Qwen3-Next and Qwen3.5 and the "
            "convolutions of LFM2 run: use such a model"
        )
    for module in recurrent:
        mix_in(module, _Recurrent, cache_argument=CACHE_ARGUMENT[type(module).__name__])


def with_memory(model: Any) -> Any:
    """A random model whose linear attention keeps what it reads for tens of tokens. transformers' initial
    decays, exp(-A softplus(1)) with A up to 16, forget within one, and little is learned through them.
    Returns the model."""
    for name, parameter in model.named_parameters():
        if name.endswith(".A_log") and not parameter.is_meta:
            parameter.data.uniform_(0.001, 0.1).log_()
    return model


def is_recurrent(text: Any) -> bool:
    """Whether the language model with this config has recurrent layers."""
    return any(kind in LAYER_TYPES for kind in getattr(text, "layer_types", None) or ())
