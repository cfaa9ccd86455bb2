"""The state of one completion in the in-process engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from vlrl.engine.base import SamplingModel
from vlrl.engine.guided import processor_for
from vlrl.engine.hf.kv_cache import PrefixEntry
from vlrl.engine.hf.lookup import NgramLookup
from vlrl.engine.hf.sampler import uniforms
from vlrl.policy.encoded import EncodedPrompt
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Completion, Request, Sampling

Finish = Literal["stop", "length"]


@dataclass(eq=False)
class SequenceState:
    """Sample `index` of a request, from its prefix to its last token.

    `ids`, `logp` (nats) and `versions` are those of the completion so far; `uniforms` are the random numbers
    of its tokens after the prefix; `entry` holds the prefilled prompt, `lookup` what drafts are looked up in.
    """

    request: Request
    index: int
    encoded: EncodedPrompt
    stop_ids: frozenset[int]
    ids: list[int]
    logp: list[float]
    uniforms: np.ndarray
    processors: tuple[Any, ...]
    versions: list[int] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    started: float = 0.0
    entry: PrefixEntry | None = None
    lookup: NgramLookup | None = None
    routing: list[Tensor] = field(default_factory=list)  # (M, K) of each token since the prefill

    @property
    def sampling(self) -> Sampling:
        return self.request.sampling

    @property
    def prefill_key(self) -> tuple[str, tuple[int, ...]]:
        """Identity of the tokens to prefill before the next token can be drawn: sequences with equal keys
        share the prefill."""
        unscored = bool(self.request.prefix_ids) and not self.request.score_prefix
        return self.request.prompt.key + "/unscored" * unscored, tuple(self.ids)

    @property
    def max_keys(self) -> int:
        """The largest number of keys that the sequence can hold."""
        return len(self.encoded) + self.sampling.max_tokens

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt and of the completion so far."""
        return len(self.encoded) + len(self.ids)


def start_sequence(lm: SamplingModel, request: Request, index: int) -> SequenceState:
    """A sequence that holds the request's prefix, which may be empty."""
    sampling, prefix = request.sampling, list(request.prefix_ids)
    count = max(0, sampling.max_tokens - len(prefix))
    return SequenceState(
        request=request,
        index=index,
        encoded=lm.encode(request.prompt),
        stop_ids=frozenset(lm.eos_ids) | frozenset(sampling.stop_ids),
        ids=prefix,
        logp=[0.0] * len(prefix),
        uniforms=uniforms(request.seed, index, count, start=len(prefix)),
        processors=(*sampling.processors, *([processor_for(sampling.guided, lm)] if sampling.guided else [])),
        versions=[lm.version] * len(prefix),
        top_logprobs=[{} for _ in prefix],
    )


def finish_reason(lm: SamplingModel, sequence: SequenceState) -> Finish | None:
    """Why the sequence ends with its last token; None if it continues."""
    if sequence.ids[-1] in sequence.stop_ids:
        return "stop"
    stops = sequence.sampling.stop
    if stops and lm.may_end(sequence.ids[-1], stops):
        window = sequence.ids[-max(len(stop.encode()) for stop in stops) - 4 :]
        tail = lm.decode_all(window)
        before = lm.decode_all(window[:-1]) if any(stop in tail for stop in stops) else tail
        if any(
            tail.count(stop) > before.count(stop) for stop in stops
        ):  # a stop string inside a given prefix does not count
            return "stop"
    return "length" if len(sequence.ids) >= sequence.sampling.max_tokens else None


def completion_of(lm: SamplingModel, sequence: SequenceState, finish: Finish) -> Completion:
    """The completion of a finished sequence. `version` is a list if the weights changed on the way."""
    same_version = len(set(sequence.versions)) <= 1
    return Completion(
        request=sequence.request,
        index=sequence.index,
        ids=sequence.ids,
        logp=sequence.logp,
        text=lm.decode(sequence.ids),
        finish=finish,
        version=sequence.versions[-1] if same_version else sequence.versions,
        top_logprobs=sequence.top_logprobs if sequence.sampling.top_logprobs else None,
        seconds=time.perf_counter() - sequence.started,
        routing=routing_of(sequence),
    )


def routing_of(sequence: SequenceState) -> np.ndarray | None:
    """(S, M, K): the experts of the prompt's and the completion's tokens but the last one; None where they
    are not recorded."""
    entry = sequence.entry
    if entry is None or entry.routing is None:
        return None
    return torch.cat([entry.routing, *(one[None] for one in sequence.routing)]).numpy()
