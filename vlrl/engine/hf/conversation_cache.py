"""Keys and values of conversations and of scored drafts, kept from one call of the in-process engine to the
next: only what is new is prefilled.

Shape legend: P prompts, J key-value heads, L tokens, D head size, S new tokens of a step, R
sequences, H hidden size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.engine.base import SamplingModel
from vlrl.engine.hf.kv_cache import KeysValues, KVCache, first_tokens, mapped, shared_attention
from vlrl.engine.hf.sequence import SequenceState
from vlrl.services.lazy import Tensor, nn, torch

CHUNK = 256  # new tokens of a sequence in one forward, which bounds the attention scores


@dataclass(frozen=True, eq=False)
class CachedConversation:
    """Keys and values (J, L, D) by layer of a prompt and the completion tokens `ids` behind it."""

    kv: KeysValues
    ids: tuple[int, ...]

    def __len__(self) -> int:
        return next(iter(self.kv.values()))[0].shape[1]

    def first(self, count: int) -> CachedConversation:
        """Those of the prompt and the first `count` completion tokens."""
        length = len(self) - len(self.ids) + count
        return CachedConversation(first_tokens(self.kv, length), self.ids[:count])


class ConversationCache:
    """Keys and values by conversation, of the weights `version`, at most `capacity` tokens; the oldest leave
    first.

    What a conversation had before is dropped with what replaces it. Exact: keys and values are those that
    decoding computed.
    """

    def __init__(self) -> None:
        self.version = -1
        self.items: OrderedDict[tuple[str, tuple[int, ...]], CachedConversation] = OrderedDict()
        self.of_prompt: dict[str, set[tuple[int, ...]]] = {}  # the same keys, by prompt
        self.tokens = 0

    def clear(self) -> None:
        """Drop everything."""
        self.items.clear()
        self.of_prompt.clear()
        self.tokens = 0

    def find(self, sequence: SequenceState, version: int) -> CachedConversation | None:
        """The longest beginning of the sequence, without its last token, that is kept of any completion of
        its prompt; None without one, or where the weights have changed."""
        if version != self.version:
            self.clear()
        # at least one token has to run, for the logits behind it
        ids, prompt = sequence.ids[:-1], sequence.request.prompt.key
        found = (
            {known: shared(known, ids) for known in self.of_prompt.get(prompt, ())} if sequence.ids else {}
        )
        best = max(found, key=lambda known: found[known], default=None)
        return None if best is None else self.items[prompt, best].first(found[best])

    def store(self, sequence: SequenceState, kv: KeysValues, version: int, capacity: int) -> None:
        """Keep the keys and values of all tokens of a sequence but its last, which has none yet."""
        # this one begins with what the turn before it has stored
        prompt, before = sequence.request.prompt.key, sequence.request.prefix_ids
        for old in [
            ids
            for ids in self.of_prompt.get(prompt, ())
            if len(ids) < len(before) and before[: len(ids)] == ids
        ]:
            self._drop(prompt, old)
        self.put(prompt, sequence.ids[:-1], kv, version, capacity)

    def put(self, prompt: str, ids: Sequence[int], kv: KeysValues, version: int, capacity: int) -> None:
        """Keep copies of the keys and values of a prompt and of completion tokens `ids`."""
        if version != self.version:
            self.clear()
            self.version = version
        # copies: a view would keep the tensors of the whole batch alive
        kept = CachedConversation(mapped(kv, lambda x: x.clone()), tuple(ids))
        if (prompt, kept.ids) in self.items:
            self._drop(prompt, kept.ids)
        self.items[prompt, kept.ids] = kept
        self.of_prompt.setdefault(prompt, set()).add(kept.ids)
        self.tokens += len(kept)
        while self.tokens > capacity:
            self._drop(*next(iter(self.items)))

    def _drop(self, prompt: str, ids: tuple[int, ...]) -> None:
        self.tokens -= len(self.items.pop((prompt, ids)))
        self.of_prompt[prompt].remove(ids)
        if not self.of_prompt[prompt]:
            del self.of_prompt[prompt]


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of leading tokens that two sequences have in common."""
    return next((place for place, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def extended(
    lm: SamplingModel, sequences: Sequence[SequenceState], kept: Sequence[CachedConversation]
) -> tuple[KeysValues, Tensor]:
    """Run the tokens behind what is kept: keys and values (P, J, L, D) of all tokens, right-padded, and the
    last hidden states (P, H)."""
    cache, device = KVCache(), lm.device
    lengths = [len(k) for k in kept]
    known = stacked([k.kv for k in kept])
    cache.add_sequences(cache.add_prompts(known, lengths, torch.zeros(len(kept), 1)), CHUNK)
    tails = [sequence.ids[len(k.ids) :] for sequence, k in zip(sequences, kept)]
    last_PH: list[Tensor] = [torch.empty(0)] * len(tails)
    for begin in range(0, max(map(len, tails)), CHUNK):
        parts = [tail[begin : begin + CHUNK] for tail in tails]
        width = max(map(len, parts))
        ids_PS = torch.tensor([[*part, *[lm.pad_id] * (width - len(part))] for part in parts], device=device)
        first_P = [s.encoded.next_position + len(k.ids) + begin for s, k in zip(sequences, kept)]
        positions = torch.tensor(first_P, device=device)[:, None] + torch.arange(width, device=device)
        if sequences[0].encoded.positions.ndim == 2:
            positions = positions.expand(sequences[0].encoded.positions.shape[0], -1, -1)
        cache.begin_step(width)
        with shared_attention(lm.text_config):
            hidden_PSH, _ = lm.hidden(
                ids_PS, positions, lm.no_mask, past_key_values=cache, use_cache=True, kv_cache=cache
            )
        cache.take_back([width - len(part) for part in parts])
        for p, part in enumerate(parts):
            if part:
                last_PH[p] = hidden_PSH[p, len(part) - 1]
    return stacked([cache.of_sequence(p) for p in range(len(tails))]), torch.stack(last_PH)


def stacked(rows: Sequence[KeysValues]) -> KeysValues:
    """Keys and values (J, L, D) of several rows as (P, J, L, D), right-padded."""
    out = {}
    for layer in rows[0]:
        width = max(row[layer][0].shape[1] for row in rows)
        pad = [[nn.functional.pad(x, (0, 0, 0, width - x.shape[1])) for x in row[layer]] for row in rows]
        keys, values = (torch.stack(side) for side in zip(*pad))
        out[layer] = keys, values
    return out
