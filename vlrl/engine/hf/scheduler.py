"""One call of the in-process engine: requests wait, are prefilled, decode together, and leave as completions.

Shape legend: P prompts of a prefill, L their tokens, A rotary axes, R rows, V vocabulary.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from vlrl.engine.hf.kv_cache import KVCache, PrefixEntry, shared_attention
from vlrl.engine.hf.sampler import Sampler
from vlrl.engine.hf.sequence import SequenceState, completion_of, finish_of, make_row
from vlrl.policy.packing import Layout
from vlrl.types import Completion, Request, Sampling


class Scheduler:
    """Continuous batching over the rows of some requests. `lm` gives the model, `limits` the token budgets."""

    def __init__(self, lm: Any, requests: Sequence[Request], token_budget: int, prefill_tokens: int, counters: Counter):
        self.lm = lm
        self.token_budget, self.prefill_tokens, self.counters = token_budget, prefill_tokens, counters
        self.store = KVCache()
        self.rows: list[SequenceState] = []
        self.slots: dict[tuple, PrefixEntry] = {}
        self.seen: dict[str, Any] = {}
        self.prefix_logp: dict[tuple, list[float]] = {}
        self.sampler: Sampler | None = None
        self.version = lm.version
        waiting = [make_row(lm, request, index) for request in requests for index in range(request.n)]
        self.waiting = deque(sorted(waiting, key=lambda row: -len(row.encoded)))

    def run(self) -> Iterator[Completion]:
        """Completions as they finish."""
        while self.waiting or self.rows:
            if self.lm.version != self.version:
                self._take_over_weights()
            admitted = self._admit()
            if admitted:
                logits_RV = torch.stack([row.slot.logits_V for row in admitted])  # type: ignore[union-attr]
                yield from self._draw(admitted, logits_RV, None)
            elif self.rows:
                self.sampler = self.sampler or Sampler(self.rows, self.lm.forbidden, self.lm.device)
                yield from self._draw(self.rows, self._decode(), self.sampler)

    # --- admission ------------------------------------------------------------------------------------------------------------------

    def _admit(self) -> list[SequenceState]:
        """Take rows from the queue while their keys fit the budget, prefill what they start from. Whole batches: not for a few freed tokens."""
        free = self.token_budget - sum(row.need for row in self.rows)
        if not self.waiting or (self.rows and free < min(self.token_budget // 4, sum(row.need for row in self.waiting))):
            return []
        taken: list[SequenceState] = []
        while self.waiting and (self.waiting[0].need <= free or not (self.rows or taken)):
            row = self.waiting.popleft()
            free -= row.need
            taken.append(row)
        new = {row.source: row for row in taken if row.source not in self.slots}
        self._prefill(list(new.values()))
        for row in taken:
            row.slot = self.slots[row.source]
            row.began = time.perf_counter()
            if row.ids:
                row.logp = self._prefix_logp(row)
        still = Counter(row.source for row in self.waiting)
        for source, slot in list(self.slots.items()):
            slot.pending = still[source]
            if not slot.pending:
                del self.slots[source]
        return taken

    def _take_over_weights(self) -> None:
        """The policy has changed: what was computed with the old weights is forgotten, unfinished rows continue from their own tokens."""
        self.counters["interrupted"] += len(self.rows)
        self.waiting.extendleft(reversed(self.rows))
        self.rows, self.slots, self.seen, self.store, self.sampler = [], {}, {}, KVCache(), None
        self.version = self.lm.version

    # --- model ----------------------------------------------------------------------------------------------------------------------

    def _prefill(self, rows: list[SequenceState]) -> None:
        rows = sorted(rows, key=lambda row: len(row.encoded) + len(row.ids))
        while rows:
            count = 0
            while count < len(rows) and (count + 1) * (len(rows[count].encoded) + len(rows[count].ids)) <= self.prefill_tokens:
                count += 1
            batch, rows = rows[: max(count, 1)], rows[max(count, 1) :]
            hidden_PLH, cache = prefill(self.lm, [(row.encoded, row.ids) for row in batch], self.seen, self.counters)
            lengths = [len(row.encoded) + len(row.ids) for row in batch]
            last_PH = hidden_PLH[torch.arange(len(batch)), torch.tensor(lengths) - 1]
            for row, hidden_LH in zip(batch, hidden_PLH):
                if row.ids:
                    self.prefix_logp[row.source] = prefix_logp(self.lm, hidden_LH, len(row.encoded), row.ids, row.sampling)
            keys, values = [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]
            slots = self.store.add_prompts(keys, values, lengths, self.lm.logits(last_PH))
            for row, slot in zip(batch, slots):
                slot.pending = 1
                self.slots[row.source] = slot

    def _prefix_logp(self, row: SequenceState) -> list[float]:
        """A given prefix is scored by the present policy; tokens that this call drew itself keep what they were drawn with."""
        given = len(row.request.prefix_ids)
        return [*self.prefix_logp[row.source][:given], *row.logp[given:]]

    def _decode(self) -> Tensor:
        """One forward for all rows: (R, V) logits of the next token."""
        rows, device = self.rows, self.lm.device
        self.store.begin()
        ids_R1 = torch.tensor([[row.ids[-1]] for row in rows], device=device)
        positions = torch.tensor([[row.encoded.next_position + len(row.ids) - 1] for row in rows], device=device)
        if rows[0].encoded.positions.ndim == 2:
            positions = positions.expand(rows[0].encoded.positions.shape[0], -1, -1)
        self.counters["decode_steps"] += 1
        self.counters["decode_rows"] += len(rows)
        with shared_attention(self.lm.text_config):
            hidden_R1H, _ = self.lm.hidden(ids_R1, positions, self.lm.no_masks, past_key_values=self.store, use_cache=True, store=self.store)
        return self.lm.logits(hidden_R1H[:, 0])

    # --- tokens ---------------------------------------------------------------------------------------------------------------------

    def _draw(self, rows: list[SequenceState], logits_RV: Tensor, sampler: Sampler | None) -> Iterator[Completion]:
        """Draw a token for each of these rows (new ones, or all that are running), keep the unfinished, yield the finished."""
        fresh = sampler is None
        done: dict[int, str] = {r: "length" for r, row in enumerate(rows) if len(row.ids) >= row.sampling.max_tokens} if fresh else {}
        drawing = [row for r, row in enumerate(rows) if r not in done]
        if drawing:
            if done:
                logits_RV = logits_RV[[r for r in range(len(rows)) if r not in done]]
            sampler = sampler or Sampler(drawing, self.lm.forbidden, self.lm.device)
            u_R = torch.tensor([row.u[len(row.ids) - len(row.request.prefix_ids)] for row in drawing], dtype=torch.float64, device=self.lm.device)
            draw = sampler(logits_RV, u_R)
            for row, token, logp in zip(drawing, draw.ids_R.tolist(), draw.logp_R.tolist()):
                row.ids.append(token)
                row.logp.append(logp)
                row.versions.append(self.version)
            for row, top in zip(drawing, draw.top or ()):
                row.top.append(top)
        for r, row in enumerate(rows):
            if r not in done and (finish := finish_of(self.lm, row)):
                done[r] = finish
        if fresh:
            stay = [row for r, row in enumerate(rows) if r not in done]
            if stay:
                self.store.add_rows([row.slot for row in stay], max(row.sampling.max_tokens for row in stay))  # type: ignore[misc]
                self.rows = [*self.rows, *stay]
                self.sampler = None
        elif done:
            self.rows = [self.rows[r] for r in self.store.drop(list(done))]
            self.sampler = None
        self.counters["tokens"] += len(drawing)
        for r, finish in done.items():
            self.counters["completions"] += 1
            yield completion_of(self.lm, rows[r], finish)


def prefill(lm: Any, sources: Sequence[tuple[Any, Sequence[int]]], seen: dict[str, Any], counters: Counter) -> tuple[Tensor, Any]:
    """Prompts (each with completion tokens behind it), right-padded in one causal forward: last hidden states (P, L, H) and the cache.

    Media are looked at once per key: `seen` remembers them.
    """
    from transformers import DynamicCache

    features = [f for encoded, _ in sources for f in encoded.features]
    fresh = {f.key: f for f in features if f.key not in seen}
    if fresh:
        seen.update(zip(fresh, lm.look(list(fresh.values()))))
        counters["media_encoded"] += len(fresh)
    width = max(len(encoded) + len(ids) for encoded, ids in sources)
    ids_PL = torch.tensor([[*encoded.ids, *ids, *[lm.pad_id] * (width - len(encoded) - len(ids))] for encoded, ids in sources], device=lm.device)
    places = []
    for encoded, _ in sources:
        rest_L = torch.arange(encoded.next_position, encoded.next_position + width - len(encoded))
        places.append(torch.cat([encoded.positions, rest_L.expand(*encoded.positions.shape[:-1], -1)], dim=-1))
    positions = torch.stack(places, dim=-2).to(lm.device)
    order_PL = torch.arange(width, device=lm.device).expand(len(sources), -1)
    real_PL = order_PL < torch.tensor([[len(encoded) + len(ids)] for encoded, ids in sources], device=lm.device)
    types_PL = torch.tensor([encoded.types + [0] * (width - len(encoded)) for encoded, _ in sources], device=lm.device)
    nothing = torch.zeros(0, dtype=torch.long)
    layout = Layout(ids_PL, positions, order_PL, torch.where(real_PL, 0, -1), types_PL, nothing, nothing, tuple(range(len(sources))))
    counters["prompts_prefilled"] += len(sources)
    counters["prefill_tokens"] += sum(len(encoded) + len(ids) for encoded, ids in sources)
    shown, kinds = [seen[f.key] for f in features], [f.kind for f in features]
    return lm.hidden(ids_PL, positions, lm.masks(layout), shown, kinds, past_key_values=DynamicCache(), use_cache=True)


def prefix_logp(lm: Any, hidden_LH: Tensor, prompt_length: int, ids: Sequence[int], sampling: Sampling) -> list[float]:
    """Log-probs (nats) of completion tokens that were given, under the policy at the sampling's temperature, without bans and filters."""
    logits_CV = lm.logits(hidden_LH[prompt_length - 1 : prompt_length - 1 + len(ids)]).float()
    scale_C1 = torch.tensor([[sampling.temperature_at(c) or 1.0] for c in range(len(ids))], device=logits_CV.device)
    logp_CV = (logits_CV / scale_C1).log_softmax(-1)
    return logp_CV[torch.arange(len(ids)), torch.tensor(list(ids))].tolist()
