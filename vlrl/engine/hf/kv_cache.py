"""The key-value cache of the in-process engine: one copy per prompt, one row per running sequence; attention
reads both in place.

A decode step's query attends to its prompt's keys (shared by all completions of the prompt, read once for all
of them) and to its own sequence's. Nothing but the states of recurrent layers is copied per completion; the
last row takes the place of a finished one.

Shape legend: P prompts, R running sequences, J key-value heads, H query heads, Q query heads per
key-value head, L prompt tokens, C completion capacity, D head size, S new tokens of a step, X queries of a
prompt (completions x Q x S), K keys (L + C), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from vlrl.policy.recurrent import LayerState, SequenceStates, joined
from vlrl.services.lazy import Tensor, nn, torch

ATTENTION_NAME = "vlrl_shared"
KeysValues: TypeAlias = "dict[int, tuple[Tensor, Tensor]]"  # by the index of their layer


@dataclass(eq=False)
class PrefixEntry:
    """A prefilled prompt in a cache. It is kept while it has running sequences, or `pending` completions that
    have not begun."""

    index: int
    logits_V: Tensor
    pending: int = 0
    routing: Tensor | None = None  # (L, M, K): the experts of its tokens


class KVCache:
    """A transformers cache (`update`, `get_seq_length`) for one new token per running sequence, or for
    several whose last ones may be taken back."""

    def __init__(self) -> None:
        self.prompt_kv: KeysValues = {}  # (P, J, L, D) of each layer
        self.own_kv: KeysValues = {}  # (R, J, C, D) of each layer, and rows that are free
        self.prompt_states: dict[int, LayerState] = {}  # of each recurrent layer, by prompt
        self.recurrent = SequenceStates()  # of the running sequences
        self.entries: list[PrefixEntry] = []
        self.length_P: list[int] = []
        self.prompt_R: list[int] = []  # the prompt of each sequence
        self.length_R: list[int] = []  # completion tokens of each sequence whose keys are stored
        self._plan: dict[str, Any] = {}  # the layout of the present decode step

    def __len__(self) -> int:
        return len(self.prompt_R)

    # --- prompts and sequences ------------------------------------------------------------------------------

    def add_prompts(
        self,
        kv: KeysValues,
        lengths: Sequence[int],
        logits_PV: Tensor,
        states: Mapping[int, LayerState] | None = None,
    ) -> list[PrefixEntry]:
        """Store a prefill: keys and values (P, J, L, D) by layer, right-padded, the logits of each prompt's
        last token, and the states of recurrent layers."""
        held = self.prompt_kv
        self.prompt_kv = (
            {layer: (_joined(held[layer][0], k), _joined(held[layer][1], v)) for layer, (k, v) in kv.items()}
            if held
            else dict(kv)
        )
        for layer, state in (states or {}).items():
            known = self.prompt_states.get(layer)
            self.prompt_states[layer] = state if known is None else joined([known, state])
        entries = [PrefixEntry(len(self.entries) + i, logits_V) for i, logits_V in enumerate(logits_PV)]
        self.entries += entries
        self.length_P += lengths
        self._plan = {}
        return entries

    def add_sequences(self, entries: Sequence[PrefixEntry], capacity: int) -> None:
        """Append empty sequences of these prompts. `capacity` tokens are expected; the tensors grow when they
        need more."""
        prompts = [entry.index for entry in entries]
        total = len(self.prompt_R) + len(prompts)
        for layer, pair in self.prompt_kv.items():
            held = self.own_kv.get(layer)
            rows, width = (held[0].shape[0], held[0].shape[2]) if held else (0, 0)
            if total > rows or capacity > width:
                # most completions end long before `max_tokens`: begin small, `begin_step` doubles the width
                shape = (max(total, rows), max(width, min(capacity, 64)))
                grown = [x.new_zeros(shape[0], x.shape[1], shape[1], x.shape[3]) for x in pair]
                for new, old in zip(grown, held or ()):
                    new[: old.shape[0], :, : old.shape[2]] = old
                self.own_kv[layer] = grown[0], grown[1]
        for layer, state in self.prompt_states.items():
            new_states, running = state.map(lambda x: x[prompts]), self.recurrent.states.get(layer)
            self.recurrent.states[layer] = joined([running, new_states]) if running else new_states
        self.prompt_R += prompts
        self.length_R += [0] * len(prompts)
        self._plan = {}

    def of_sequence(self, row: int) -> KeysValues:
        """Keys and values (J, L, D) of a running sequence, by layer: those of its prompt and its own."""
        prompt, own = self.prompt_R[row], self.length_R[row]
        length = self.length_P[prompt]
        out = {}
        for layer, shared in self.prompt_kv.items():
            keys, values = (
                torch.cat([x[prompt, :, :length], new[row, :, :own]], dim=1)
                for x, new in zip(shared, self.own_kv[layer])
            )
            out[layer] = keys, values
        return out

    def of_prompt(self, entry: PrefixEntry) -> KeysValues:
        """Keys and values (J, L, D) of a prompt, by layer."""
        return mapped(self.prompt_kv, lambda x: x[entry.index, :, : self.length_P[entry.index]])

    def remove(self, finished: Sequence[int]) -> list[int]:
        """Remove sequences: the last ones move into their places. Returns the old index of each remaining
        sequence."""
        removed, total = set(finished), len(self)
        keep = total - len(removed)
        order = list(range(total))
        movers = [r for r in range(keep, total) if r not in removed]
        holes = sorted(r for r in removed if r < keep)
        for kv in (x for pair in self.own_kv.values() for x in pair) if movers else ():
            kv[holes] = kv[movers]
        for hole, mover in zip(holes, movers):
            order[hole] = mover
        order = order[:keep]
        for layer, state in self.recurrent.states.items():
            self.recurrent.states[layer] = state.map(lambda x: x[order])
        self.prompt_R = [self.prompt_R[r] for r in order]
        self.length_R = [self.length_R[r] for r in order]
        self._plan = {}
        needed = set(self.prompt_R) | {entry.index for entry in self.entries if entry.pending}
        # copying all prompts at every end would cost more than the memory is worth: only when half can go
        if len(needed) <= len(self.entries) // 2:
            self._compact_prompts(sorted(needed))
        return order

    def _compact_prompts(self, kept: list[int]) -> None:
        new_index = {p: i for i, p in enumerate(kept)}
        self.entries = [self.entries[p] for p in kept]
        for i, entry in enumerate(self.entries):
            entry.index = i
        self.length_P = [self.length_P[p] for p in kept]
        width = max(self.length_P, default=0)
        index = torch.tensor(kept, dtype=torch.long, device=_any(self.prompt_kv).device)
        self.prompt_kv = (
            mapped(self.prompt_kv, lambda x: x[:, :, :width].index_select(0, index)) if kept else {}
        )
        states = self.prompt_states if kept else {}
        self.prompt_states = {layer: state.map(lambda x: x[kept]) for layer, state in states.items()}
        self.prompt_R = [new_index[p] for p in self.prompt_R]

    # --- decode step ----------------------------------------------------------------------------------------

    def begin_step(self, tokens: int = 1) -> None:
        """Make room for `tokens` new tokens per sequence and plan the step."""
        device, width = _any(self.own_kv).device, _any(self.own_kv).shape[2]
        longest = max(self.length_R) + tokens
        if longest > width:
            self.own_kv = mapped(self.own_kv, lambda x: _widened(x, max(longest, 2 * width)))
        if not self._plan:
            self._plan = _plan_step(self.prompt_R, self.length_P, device)
        length_R = torch.tensor(self.length_R, device=device)
        place_RS = length_R[:, None] + torch.arange(tokens, device=device)
        own_RSC = torch.arange(longest, device=device) > place_RS[..., None]
        self._plan.update(
            longest=longest,
            place_RS=place_RS,
            masks={},
            own_RSC=own_RSC if min(self.length_R) + 1 < longest else None,
        )
        self.length_R = [n + tokens for n in self.length_R]

    def take_back(self, tokens_R: Sequence[int]) -> None:
        """Drop the last tokens of each sequence, which the step before has stored."""
        self.length_R = [n - tokens for n, tokens in zip(self.length_R, tokens_R, strict=True)]

    def update(
        self, key_RJSD: Tensor, value_RJSD: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the new tokens and return the sequences' keys and values, (R, J, longest, D)."""
        plan, rows = self._plan, key_RJSD.shape[0]
        out = []
        for layer, new in zip(self.own_kv[layer_idx], (key_RJSD, value_RJSD)):
            # under autocast a prefill's keys have a wider type than a step's
            layer[plan["arange_R"][:, None], :, plan["place_RS"]] = new.transpose(1, 2).to(layer.dtype)
            out.append(layer[:rows, :, : plan["longest"]])
        return out[0], out[1]

    def attend(
        self,
        query_RHSD: Tensor,
        key_RJCD: Tensor,
        value_RJCD: Tensor,
        layer: int,
        scaling: float,
        window: int | None = None,
        expand: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """softmax([q K_prompt, q K_own]) [V_prompt; V_own], (R, S, H, D); with a `window` over the last
        `window` keys only. `expand` makes keys and values of what is stored."""
        plan = self._plan
        rows, heads, new, d = query_RHSD.shape
        prompts, j = len(self.length_P), key_RJCD.shape[1]
        q, most, width, place_R = heads // j * new, plan["most"], plan["width"], plan["place_R"]
        keys_PJLD, values_PJLD = (x[:, :, :width] for x in self.prompt_kv[layer])
        if expand is not None:
            keys_PJLD, values_PJLD = expand(keys_PJLD, values_PJLD)
        query_RJQD = (query_RHSD * scaling).reshape(
            rows, j, q, d
        )  # the new tokens of a head are further queries of its key-value head
        shared_PJXL = _to_prompts(query_RJQD, place_R, prompts, most) @ keys_PJLD.transpose(-1, -2)
        if plan["pad_P11L"] is not None:
            shared_PJXL = shared_PJXL.masked_fill_(plan["pad_P11L"], float("-inf"))
        own_RJQC = query_RJQD @ key_RJCD.transpose(-1, -2)
        if plan["own_RSC"] is not None:
            own_RJQC.unflatten(2, (-1, new)).masked_fill_(plan["own_RSC"][:, None, None], float("-inf"))
        scores = torch.cat([_to_rows(shared_PJXL, place_R, most, q), own_RJQC], dim=-1)
        if window is not None:
            scores.unflatten(2, (-1, new)).masked_fill_(self._outside(window)[:, None, None], float("-inf"))
        weights = scores.softmax(-1, dtype=torch.float32).to(query_RHSD.dtype)
        shared_PJXD = _to_prompts(weights[..., :width], place_R, prompts, most) @ values_PJLD
        out_RJQD = _to_rows(shared_PJXD, place_R, most, q) + weights[..., width:] @ value_RJCD
        return out_RJQD.reshape(rows, heads, new, -1).transpose(1, 2).contiguous()

    def _outside(self, window: int) -> Tensor:
        """(R, S, K): the keys outside a sliding window; equal in all layers of a step."""
        plan, device = self._plan, self._plan["place_RS"].device
        if window not in plan["masks"]:
            begin_R1 = torch.tensor([[self.length_P[p]] for p in self.prompt_R], device=device)
            prompt_RL = torch.arange(plan["width"], device=device).expand(len(self), -1)
            place_RK = torch.cat([prompt_RL, begin_R1 + torch.arange(plan["longest"], device=device)], dim=-1)
            plan["masks"][window] = place_RK[:, None] <= (begin_R1 + plan["place_RS"] - window)[..., None]
        return plan["masks"][window]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Keys that the longest sequence attends to."""
        return max(self.length_P[p] + n for p, n in zip(self.prompt_R, self.length_R)) if self.prompt_R else 0


def _plan_step(prompt_R: Sequence[int], length_P: Sequence[int], device: torch.device) -> dict[str, Any]:
    """Sequences by prompt: sequence r is query `place_R[r]` of a (P x most completions of a prompt) table;
    None if that is the identity."""
    counts = [0] * len(length_P)
    nth = []
    for p in prompt_R:
        nth.append(counts[p])
        counts[p] += 1
    most = max(counts)
    places = [p * most + g for p, g in zip(prompt_R, nth)]
    identity = places == list(range(len(counts) * most))
    width = max(length_P)
    pad_PL = torch.arange(width, device=device) >= torch.tensor(length_P, device=device)[:, None]
    return {
        "place_R": None if identity else torch.tensor(places, device=device),
        "most": most,
        "pad_P11L": pad_PL[:, None, None] if min(length_P) < width else None,
        "width": width,
        "arange_R": torch.arange(len(places), device=device),
    }


def mapped(kv: KeysValues, change: Callable[[Tensor], Tensor]) -> KeysValues:
    """Keys and values, all changed."""
    return {layer: (change(keys), change(values)) for layer, (keys, values) in kv.items()}


def first_tokens(kv: KeysValues, length: int, row: int | None = None) -> KeysValues:
    """The first `length` keys and values, of `row` if they are of several."""
    return mapped(kv, lambda x: (x if row is None else x[row])[..., :length, :])


def _any(kv: KeysValues) -> Tensor:
    """The keys of one layer."""
    return next(iter(kv.values()))[0]


def _joined(a_PJLD: Tensor, b_PJLD: Tensor) -> Tensor:
    """Prompts of both tensors."""
    width = max(a_PJLD.shape[2], b_PJLD.shape[2])
    return torch.cat([_widened(a_PJLD, width), _widened(b_PJLD, width)])


def _widened(x: Tensor, width: int) -> Tensor:
    """Zero-padded to `width` in dimension -2."""
    return x if x.shape[-2] >= width else nn.functional.pad(x, (0, 0, 0, width - x.shape[-2]))


def _to_prompts(x_RJQY: Tensor, place_R: Tensor | None, prompts: int, most: int) -> Tensor:
    """(R, J, Q, Y) -> (P, J, most * Q, Y), zeros where a prompt has fewer sequences."""
    _, j, q, y = x_RJQY.shape
    if place_R is not None:
        x_RJQY = x_RJQY.new_zeros(prompts * most, j, q, y).index_copy_(0, place_R, x_RJQY)
    return x_RJQY.view(prompts, most, j, q, y).transpose(1, 2).reshape(prompts, j, most * q, y)


def _to_rows(x_PJXY: Tensor, place_R: Tensor | None, most: int, q: int) -> Tensor:
    """Inverse of `_to_prompts`: (P, J, most * Q, Y) -> (R, J, Q, Y)."""
    prompts, j, _, y = x_PJXY.shape
    x = x_PJXY.view(prompts, j, most, q, y).transpose(1, 2).reshape(prompts * most, j, q, y)
    return x if place_R is None else x.index_select(0, place_R)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    scaling: float,
    kv_cache: KVCache,
    **more: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls by name. A layer without keys of its own (Gemma 4) reads
    those of the last one of its kind that has some; latent attention (DeepSeek-V3) stores its latents."""
    layer, window = module.layer_idx, more.get("sliding_window")
    if layer not in kv_cache.own_kv:
        kinds = module.config.layer_types
        layer = max(other for other in kv_cache.own_kv if kinds[other] == kinds[layer])
    expand = getattr(module, "expand_kv", None)
    return kv_cache.attend(query, key, value, layer, scaling, window, expand), None


@contextmanager
def shared_attention(text_config: Any) -> Iterator[None]:
    """Inside, the language model with this config attends through the `KVCache` that its forward gets as
    `kv_cache`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, _attention)
    # the field behind the setter, which would change the configs below this one too
    previous = text_config._attn_implementation_internal
    text_config._attn_implementation_internal = ATTENTION_NAME
    try:
        yield
    finally:
        text_config._attn_implementation_internal = previous
