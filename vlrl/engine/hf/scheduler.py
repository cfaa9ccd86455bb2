"""One call of the in-process engine: requests wait, are prefilled, decode together, and leave as completions
(continuous batching).

Shape legend: P prompts of a prefill, L their tokens, A rotary axes, R running sequences, S new tokens of a
step, H hidden size, V vocabulary, C given completion tokens.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from vlrl.engine.base import SamplingModel
from vlrl.engine.hf.conversation_cache import CachedConversation, ConversationCache, extended
from vlrl.engine.hf.kv_cache import KeysValues, KVCache, PrefixEntry, first_tokens, shared_attention
from vlrl.engine.hf.lookup import NgramLookup, worth_running
from vlrl.engine.hf.sampler import Sampler
from vlrl.engine.hf.sequence import Finish, SequenceState, completion_of, finish_reason, start_sequence
from vlrl.policy.encoded import EncodedPrompt, MediaEmbeds
from vlrl.policy.packing import Layout, Node
from vlrl.policy.recurrent import LayerState, States, is_recurrent
from vlrl.policy.routing import Routing
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Completion, Request, Sampling

PrefillKey = tuple[str, tuple[int, ...]]


class Limits(NamedTuple):
    """Settings of the engine, in tokens."""

    token_budget: int
    prefill_tokens: int
    lookup_tokens: int = 0
    conversation_tokens: int = 0


class Scheduler:
    """Continuous batching of the sequences of some requests. `limits` are the engine's; `conversations` holds
    keys and values between its calls."""

    def __init__(
        self,
        lm: SamplingModel,
        requests: Sequence[Request],
        limits: Limits,
        counters: Counter[str],
        conversations: ConversationCache,
    ) -> None:
        self.lm, self.conversations = lm, conversations
        self.token_budget, self.prefill_tokens, self.lookup_tokens, self.conversation_tokens = limits
        self.counters = counters
        self.drafted: Counter[str] = Counter()  # drafted and accepted tokens of this call
        self.cache = KVCache()
        self.running: list[SequenceState] = []
        self.entries: dict[
            PrefillKey, PrefixEntry
        ] = {}  # prefilled prompts that waiting sequences will need again
        self.embeds: dict[str, MediaEmbeds] = {}
        self.given_logp: dict[PrefillKey, list[float]] = {}
        self.sampler: Sampler | None = None
        self.packed: dict[Any, Tensor] | None = (
            None  # copies of the present weights for faster products, made at the first decode step
        )
        self.version = lm.version
        waiting = [start_sequence(lm, request, index) for request in requests for index in range(request.n)]
        # by length: similar prompts are prefilled together, with little padding, and the completions of a
        # prompt, which share its entry, follow each other
        self.waiting = deque(sorted(waiting, key=lambda sequence: -len(sequence.encoded)))

    def run(self) -> Iterator[Completion]:
        """Completions as they finish."""
        while self.waiting or self.running:
            if self.lm.version != self.version:
                self._requeue_under_new_weights()
            admitted = self._admit()
            if admitted:
                yield from self._begin(admitted)
            elif self.running:
                yield from self._step()

    # --- admission ------------------------------------------------------------------------------------------

    def _admit(self) -> list[SequenceState]:
        """Take sequences from the queue while their keys fit the budget, and prefill their prompts.

        Only whole batches are admitted: nothing happens while less than a quarter of the budget is free.
        """
        # a prefill stops all decoding, so it waits until it admits many; `max_keys` reserves all tokens that
        # a sequence may reach, so no running sequence has to be evicted later
        free = self.token_budget - sum(sequence.max_keys for sequence in self.running)
        if not self.waiting or (
            self.running
            and free < min(self.token_budget // 4, sum(sequence.max_keys for sequence in self.waiting))
        ):
            return []
        admitted: list[SequenceState] = []
        # a sequence larger than the budget is admitted alone, or nothing would ever run
        while self.waiting and (self.waiting[0].max_keys <= free or not (self.running or admitted)):
            sequence = self.waiting.popleft()
            free -= sequence.max_keys
            admitted.append(sequence)
        new = {
            sequence.prefill_key: sequence
            for sequence in admitted
            if sequence.prefill_key not in self.entries
        }
        self._prefill(list(new.values()))
        for sequence in admitted:
            sequence.entry = self.entries[sequence.prefill_key]
            sequence.started = time.perf_counter()
            sequence.routing = []
            if sequence.ids:
                sequence.logp = self._logp_of_given(sequence)
        pending = Counter(sequence.prefill_key for sequence in self.waiting)
        for key, entry in list(self.entries.items()):
            entry.pending = pending[key]
            if not entry.pending:
                del self.entries[key]
        return admitted

    def _requeue_under_new_weights(self) -> None:
        """The policy has changed: drop all keys, values and embeddings; unfinished sequences wait again and
        continue from their own tokens."""
        # keys of the old weights are wrong for the new ones; drawn tokens, log-probs and versions stay
        self.counters["interrupted"] += len(self.running)
        self.waiting.extendleft(reversed(self.running))
        self.running, self.entries, self.embeds, self.cache, self.sampler = [], {}, {}, KVCache(), None
        self.version, self.packed = self.lm.version, None

    # --- model ----------------------------------------------------------------------------------------------

    def _prefill(self, sequences: list[SequenceState]) -> None:
        sequences = sorted(sequences, key=lambda sequence: sequence.prompt_length)
        while sequences:
            count = 0
            while (
                count < len(sequences) and (count + 1) * sequences[count].prompt_length <= self.prefill_tokens
            ):
                count += 1
            batch, sequences = sequences[: max(count, 1)], sequences[max(count, 1) :]
            known = [(sequence, kept) for sequence in batch if (kept := self._lookup(sequence)) is not None]
            self._extend(known)
            found = {id(sequence) for sequence, _ in known}
            batch = [sequence for sequence in batch if id(sequence) not in found]
            if not batch:
                continue
            record = Routing() if self.lm.family.router_replay else None
            sources = [(sequence.encoded, sequence.ids) for sequence in batch]
            hidden_PLH, kv, states = prefill(self.lm, sources, self.embeds, self.counters, record)
            lengths = [sequence.prompt_length for sequence in batch]
            last_PH = hidden_PLH[torch.arange(len(batch)), torch.tensor(lengths) - 1]
            for sequence, hidden_LH in zip(batch, hidden_PLH):
                if sequence.ids and sequence.request.score_prefix:
                    logp = given_logp(
                        self.lm, hidden_LH, len(sequence.encoded), sequence.ids, sequence.sampling
                    )
                    self.given_logp[sequence.prefill_key] = logp
            self._add(batch, kv, last_PH, states)
            if record is not None:
                chosen_PLMK = record.chosen_NMK.unflatten(0, hidden_PLH.shape[:2])
                for sequence, chosen_LMK, length in zip(batch, chosen_PLMK, lengths):
                    self.entries[sequence.prefill_key].routing = chosen_LMK[:length]

    def _add(
        self,
        sequences: Sequence[SequenceState],
        kv: KeysValues,
        last_PH: Tensor,
        states: Mapping[int, LayerState] | None = None,
    ) -> None:
        """Store the keys, values and states of prompts, and the logits behind their last hidden states."""
        lengths = [sequence.prompt_length for sequence in sequences]
        entries = self.cache.add_prompts(kv, lengths, self.lm.logits(last_PH), states)
        for sequence, entry in zip(sequences, entries):
            entry.pending = 1
            self.entries[sequence.prefill_key] = entry

    def _lookup(self, sequence: SequenceState) -> CachedConversation | None:
        """What is kept of the conversation that the sequence continues; only requests whose prefix is not
        scored are looked up."""
        if not self.conversation_tokens or sequence.request.score_prefix:
            return None
        self.counters["prompt_tokens"] += sequence.prompt_length
        return self.conversations.find(sequence, self.version)

    def _extend(self, known: Sequence[tuple[SequenceState, CachedConversation]]) -> None:
        """Prefill only the tokens behind what is kept."""
        if not known:
            return
        sequences, kept = [sequence for sequence, _ in known], [one for _, one in known]
        self._add(sequences, *extended(self.lm, sequences, kept))
        cached, whole = sum(map(len, kept)), sum(sequence.prompt_length for sequence in sequences)
        self.counters.update(
            {"prompts_prefilled": len(sequences), "prefill_tokens": whole - cached, "cached_tokens": cached}
        )

    def _cache(self, sequences: Sequence[SequenceState], done: Iterable[int], running: bool) -> None:
        """Keep the keys and values of finished conversations; those of sequences that ended with their first
        token are their prompt's."""
        for r in done if self.conversation_tokens else ():
            sequence = sequences[r]
            if not sequence.request.score_prefix and (
                running or len(sequence.ids) > len(sequence.request.prefix_ids)
            ):
                kv = self.cache.of_sequence(r) if running else self.cache.of_prompt(entry_of(sequence))
                known = first_tokens(kv, sequence.prompt_length - 1)
                self.conversations.store(sequence, known, self.version, self.conversation_tokens)

    def _logp_of_given(self, sequence: SequenceState) -> list[float]:
        """Log-probs of the tokens so far: the request's prefix under the present policy, tokens drawn in this
        call as they were drawn."""
        given = len(sequence.request.prefix_ids)
        if not sequence.request.score_prefix:
            return [*[0.0] * given, *sequence.logp[given:]]
        return [*self.given_logp[sequence.prefill_key][:given], *sequence.logp[given:]]

    def _drafts(self) -> list[list[int]]:
        """Per running sequence the tokens that are tried after its last one; all empty where that is not
        expected to pay."""
        none: list[list[int]] = [[] for _ in self.running]
        if not self.lookup_tokens:
            return none
        drafts = []
        for sequence in self.running:
            if sequence.lookup is None:
                sequence.lookup = NgramLookup(sequence.encoded.ids, self.lm.forbidden_set)
            sequence.lookup.extend(sequence.ids[len(sequence.lookup.ids) - len(sequence.encoded) :])
            drafts.append(
                sequence.lookup.draft(
                    min(self.lookup_tokens, sequence.sampling.max_tokens - len(sequence.ids) - 1)
                )
            )
        return drafts if worth_running(drafts, self.drafted) else none

    def _decode(self, drafts_R: list[list[int]]) -> Tensor:
        """One forward of all running sequences and their drafts: (R, S, V) logits of the next token after the
        last one and after each drafted one."""
        from vlrl.policy.cpu_matmul import pack, packed_weights  # imports torch

        running, device = self.running, self.lm.device
        tokens = 1 + max(map(len, drafts_R))
        self.cache.begin_step(tokens)
        ids = [
            [sequence.ids[-1], *draft, *[sequence.ids[-1]] * (tokens - 1 - len(draft))]
            for sequence, draft in zip(running, drafts_R)
        ]
        first = [[sequence.encoded.next_position + len(sequence.ids) - 1] for sequence in running]
        positions = torch.tensor(first, device=device) + torch.arange(tokens, device=device)
        if running[0].encoded.positions.ndim == 2:
            positions = positions.expand(running[0].encoded.positions.shape[0], -1, -1)
        self.counters["decode_steps"] += 1
        self.counters["decode_rows"] += len(running)
        if self.packed is None:
            self.packed = pack(self.lm.model)
        ids_RS, cache = torch.tensor(ids, device=device), self.cache
        with shared_attention(self.lm.text_config), packed_weights(self.packed):
            options: dict[str, Any] = {"seq_idx": cache.recurrent} if cache.prompt_states else {}
            record = Routing() if self.lm.family.router_replay else None
            if record is not None:
                options["routing"] = record
            hidden_RSH, _ = self.lm.hidden(
                ids_RS,
                positions,
                self.lm.no_mask,
                past_key_values=cache,
                use_cache=True,
                kv_cache=cache,
                **options,
            )
            if record is not None:
                for sequence, chosen_MK in zip(running, record.chosen_NMK):
                    sequence.routing.append(chosen_MK)
            return self.lm.logits(hidden_RSH)

    # --- tokens ---------------------------------------------------------------------------------------------

    def _begin(self, sequences: list[SequenceState]) -> Iterator[Completion]:
        """Draw the first token of admitted sequences, let the unfinished run, yield the finished."""
        done: dict[int, Finish] = {
            r: "length"
            for r, sequence in enumerate(sequences)
            if len(sequence.ids) >= sequence.sampling.max_tokens
        }
        drawing = [
            r for r in range(len(sequences)) if r not in done
        ]  # a given prefix may already fill `max_tokens`
        if drawing:
            logits_RV = torch.stack([entry_of(sequences[r]).logits_V for r in drawing])
            done |= self._append_tokens(
                sequences, drawing, logits_RV, Sampler([sequences[r] for r in drawing], self.lm.device)
            )
        self._cache(sequences, done, running=False)
        unfinished = [sequence for r, sequence in enumerate(sequences) if r not in done]
        if unfinished:
            capacity = max(sequence.sampling.max_tokens for sequence in unfinished)
            self.cache.add_sequences([entry_of(sequence) for sequence in unfinished], capacity)
            self.running, self.sampler = [*self.running, *unfinished], None
        yield from self._completed(sequences, done)

    def _step(self) -> Iterator[Completion]:
        """A decode step: one token of every running sequence, and one more after each drafted token that is
        the one drawn.

        A token is drawn from the policy's law with its own random number whether or not one was drafted in
        its place, so that drafts change neither the law nor, but for rounding, a single sample.
        """
        drafts_R, running = self._drafts(), self.running
        logits_RSV = self._decode(drafts_R)
        self.sampler = self.sampler or Sampler(running, self.lm.device)
        before, rows = [len(sequence.ids) for sequence in running], list(range(len(running)))
        done: dict[int, Finish] = {}
        for place in range(logits_RSV.shape[1]):
            # place 0 keeps the sampler of all running rows; behind it only rows whose draft was drawn go on
            sampler = Sampler([running[r] for r in rows], self.lm.device) if place else self.sampler
            logits_RV = logits_RSV[rows, place] if place else logits_RSV[:, 0]
            done |= self._append_tokens(running, rows, logits_RV, sampler)
            rows = [
                r for r in rows if r not in done and drafts_R[r][place : place + 1] == running[r].ids[-1:]
            ]
            if not rows:
                break
        tokens_R = [len(sequence.ids) - n for sequence, n in zip(running, before)]
        if logits_RSV.shape[1] > 1:
            self.cache.take_back([logits_RSV.shape[1] - n for n in tokens_R])
            counts = {"drafted": sum(map(len, drafts_R)), "accepted": sum(tokens_R) - len(running)}
            self.drafted.update(counts)
            self.counters.update(counts)
        if done:
            self._cache(running, done, running=True)
            self.running, self.sampler = [running[r] for r in self.cache.remove(list(done))], None
        yield from self._completed(running, done)

    def _completed(self, sequences: list[SequenceState], done: dict[int, Finish]) -> Iterator[Completion]:
        for r, finish in done.items():
            self.counters["completions"] += 1
            yield completion_of(self.lm, sequences[r], finish)

    def _append_tokens(
        self, sequences: list[SequenceState], rows: list[int], logits_RV: Tensor, sampler: Sampler
    ) -> dict[int, Finish]:
        """Draw the next token of the sequences `rows`; the rows that end with it, and why."""
        drawing = [sequences[r] for r in rows]
        # the random number of a token depends on its place in the completion alone, not on the batch
        numbers = [
            sequence.uniforms[len(sequence.ids) - len(sequence.request.prefix_ids)] for sequence in drawing
        ]
        draw = sampler(logits_RV, torch.tensor(numbers, dtype=torch.float64, device=self.lm.device))
        self.counters["tokens"] += len(drawing)
        for sequence, token, logp in zip(drawing, draw.ids_R.tolist(), draw.logp_R.tolist()):
            sequence.ids.append(token)
            sequence.logp.append(logp)
            sequence.versions.append(self.version)
        for sequence, top in zip(drawing, draw.top_logprobs or ()):
            sequence.top_logprobs.append(top)
        return {r: finish for r in rows if (finish := finish_reason(self.lm, sequences[r]))}


def entry_of(sequence: SequenceState) -> PrefixEntry:
    """The prefilled prompt of an admitted sequence."""
    assert sequence.entry is not None
    return sequence.entry


def prefill(
    lm: SamplingModel,
    sources: Sequence[tuple[EncodedPrompt, Sequence[int]]],
    embeds: dict[str, MediaEmbeds],
    counters: Counter[str],
    routing: Routing | None = None,
) -> tuple[Tensor, KeysValues, Mapping[int, LayerState]]:
    """Prompts, each followed by completion tokens, right-padded in one causal forward: last hidden states (P,
    L, H), keys and values (P, J, L, D) by layer, states at their ends by recurrent layer.

    Args: `embeds` holds the media embeddings by key; those that are missing are computed and added. `routing`
    records the experts.
    """
    from transformers import DynamicCache

    features = [f for encoded, _ in sources for f in encoded.features]
    missing = {f.key: f for f in features if f.key not in embeds}
    if missing:
        before = lm.policy.counters["media_encoded"]
        embeds.update(zip(missing, lm.encode_media(list(missing.values()))))
        counters["media_encoded"] += lm.policy.counters["media_encoded"] - before
    width = max(len(encoded) + len(ids) for encoded, ids in sources)
    ids_PL = torch.tensor(
        [[*encoded.ids, *ids, *[lm.pad_id] * (width - len(encoded) - len(ids))] for encoded, ids in sources],
        device=lm.device,
    )
    positions = []
    for encoded, _ in sources:
        rest_L = torch.arange(encoded.next_position, encoded.next_position + width - len(encoded))
        positions.append(
            torch.cat([encoded.positions, rest_L.expand(*encoded.positions.shape[:-1], -1)], dim=-1)
        )
    positions_PL = torch.stack(positions, dim=-2).to(lm.device)
    order_PL = torch.arange(width, device=lm.device).expand(len(sources), -1)
    real_PL = order_PL < torch.tensor(
        [[len(encoded) + len(ids)] for encoded, ids in sources], device=lm.device
    )
    types_PL = torch.tensor(
        [encoded.types + [0] * (width - len(encoded)) for encoded, _ in sources], device=lm.device
    )
    unscored, whole = torch.zeros(0, dtype=torch.long), ((Node(0, width, width),),) * len(sources)
    layout = Layout(
        ids_PL, positions_PL, order_PL * real_PL, width * real_PL, types_PL, unscored, unscored, whole
    )
    counters["prompts_prefilled"] += len(sources)
    counters["prefill_tokens"] += sum(len(encoded) + len(ids) for encoded, ids in sources)
    shown, kinds = [embeds[f.key] for f in features], [f.kind for f in features]
    options: dict[str, Any] = {} if routing is None else {"routing": routing}
    if is_recurrent(lm.text_config):
        ends = [len(encoded) + len(ids) for encoded, ids in sources]
        options["seq_idx"] = States([(Node(0, end, end),) for end in ends], ids_PL.shape, keep=True)
    hidden_PLH, cache = lm.hidden(
        ids_PL,
        positions_PL,
        lm.masks(layout),
        shown,
        kinds,
        past_key_values=DynamicCache(),
        use_cache=True,
        **options,
    )
    kv = {i: (layer.keys, layer.values) for i, layer in enumerate(cache.layers) if layer.is_initialized}
    return hidden_PLH, kv, options["seq_idx"].after if "seq_idx" in options else {}


def given_logp(
    lm: SamplingModel, hidden_LH: Tensor, prompt_length: int, ids: Sequence[int], sampling: Sampling
) -> list[float]:
    """Log-probs (nats) of given completion tokens under the policy, at the sampling's temperature, without
    bans and filters."""
    # hidden state c - 1 predicts token c
    logits_CV = lm.logits(hidden_LH[prompt_length - 1 : prompt_length - 1 + len(ids)]).float()
    scale_C1 = torch.tensor(
        [[sampling.temperature_at(c) or 1.0] for c in range(len(ids))], device=logits_CV.device
    )
    logp_CV = (logits_CV / scale_C1).log_softmax(-1)
    return logp_CV[torch.arange(len(ids)), torch.tensor(list(ids))].tolist()
