"""One completion on its way through the in-process engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vlrl.engine.guided import processor_for
from vlrl.engine.hf.kv_cache import PrefixEntry
from vlrl.engine.hf.rng import uniforms
from vlrl.types import Completion, Request, Sampling


@dataclass(eq=False)
class SequenceState:
    """One completion on its way."""

    request: Request
    index: int
    encoded: Any
    ends: frozenset[int]
    ids: list[int]
    logp: list[float]
    u: np.ndarray
    processors: tuple
    versions: list[int] = field(default_factory=list)
    top: list[dict[int, float]] = field(default_factory=list)
    began: float = 0.0
    slot: PrefixEntry | None = None

    @property
    def sampling(self) -> Sampling:
        return self.request.sampling

    @property
    def source(self) -> tuple[str, tuple[int, ...]]:
        """What must be prefilled before the next token can be drawn: rows with equal sources share it."""
        return self.request.prompt.key, tuple(self.ids)

    @property
    def need(self) -> int:
        """Keys that the finished row may hold at most."""
        return len(self.encoded) + self.sampling.max_tokens


def make_row(lm: Any, request: Request, index: int) -> SequenceState:
    """A row at its beginning: nothing, or the request's prefix."""
    sampling, prefix = request.sampling, list(request.prefix_ids)
    count = max(0, sampling.max_tokens - len(prefix))
    return SequenceState(
        request=request,
        index=index,
        encoded=lm.encode(request.prompt),
        ends=frozenset(lm.eos_ids) | frozenset(sampling.stop_ids),
        ids=prefix,
        logp=[0.0] * len(prefix),
        u=uniforms(request.seed, index, count, start=len(prefix)),
        processors=(*sampling.processors, *([processor_for(sampling.guided, lm)] if sampling.guided else [])),
        versions=[lm.version] * len(prefix),
        top=[{} for _ in prefix],
    )


def finish_of(lm: Any, row: SequenceState) -> str:
    """Why the row ends with its last token: "stop", "length", or "" if it goes on."""
    if row.ids[-1] in row.ends:
        return "stop"
    stops = row.sampling.stop
    if stops:
        window = row.ids[-max(len(stop.encode()) for stop in stops) - 4 :]
        tail = lm.decode(window)
        before = lm.decode(window[:-1]) if any(stop in tail for stop in stops) else tail
        if any(tail.count(stop) > before.count(stop) for stop in stops):  # one that a given prefix holds does not count
            return "stop"
    return "length" if len(row.ids) >= row.sampling.max_tokens else ""


def completion_of(lm: Any, row: SequenceState, finish: str) -> Completion:
    """A finished row, as it is handed out."""
    one = len(set(row.versions)) <= 1
    return Completion(
        request=row.request,
        index=row.index,
        ids=row.ids,
        logp=row.logp,
        text=lm.decode(row.ids),
        finish=finish,  # type: ignore[arg-type]
        version=row.versions[-1] if one else row.versions,  # type: ignore[arg-type]
        top_logprobs=row.top if row.sampling.top_logprobs else None,
        seconds=time.perf_counter() - row.began,
    )
