"""Drawing the responses of a run: what is missing in the journal is asked for, and every answer goes into it at once."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.eval.journal import Entry, Journal
from vlrl.eval.prompts import Asked, ask, sample_seed
from vlrl.eval.rows import Rows
from vlrl.types import Completion, MediaError, Request, Sampling

log = logging.getLogger("vlrl")
Progress = Callable[[Entry, int, int], None]


@dataclass(frozen=True)
class Draw:
    """How responses are drawn. `max_tokens` 0 takes the suite's own cap (of the protocol). `batch` requests are handed to the engine at a time."""

    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 0
    seed: int = 0
    protocol: str = "direct"
    variants: tuple[str, ...] = ("plain",)
    batch: int = 256

    def cap(self, rows: Rows) -> int:
        """Tokens that a response may have."""
        return self.max_tokens or (rows.suite.thinking_max_tokens if self.protocol == "thinking" else rows.suite.max_tokens)

    def count(self, variant: str) -> int:
        """Samples per row: floors and audits are drawn once."""
        return self.samples if variant == "plain" else 1


@dataclass(frozen=True)
class Todo:
    """One sample that the journal does not have."""

    rows: Rows
    number: int
    variant: str
    sample: int

    @property
    def key(self) -> tuple[str, str, str, int]:
        return (self.rows.suite.name, self.variant, self.rows.ids[self.number], self.sample)


def missing(all_rows: Sequence[Rows], draw: Draw, journal: Journal, rank: int = 0, world: int = 1) -> list[Todo]:
    """What this process still has to draw: every world-th of what no journal has without an error."""
    done = {key for key, entry in journal.entries().items() if not entry.error}
    todo = []
    for rows in all_rows:
        ids = rows.ids
        for variant in draw.variants:
            for number, name in enumerate(ids):
                for sample in range(draw.count(variant)):
                    if (rows.suite.name, variant, name, sample) not in done:
                        todo.append(Todo(rows, number, variant, sample))
    return todo[rank::world]


def collect(engine: Any, todo: Sequence[Todo], draw: Draw, journal: Journal, policy: Any = None, progress: Progress | None = None) -> int:
    """Draw and journal `todo`; returns how many failed. A row whose media or prompt is broken fails alone, with its reason in the journal."""
    failed = done = 0
    for start in range(0, len(todo), draw.batch):
        for entry in _batch(engine, todo[start : start + draw.batch], draw, policy):
            journal.add(entry)
            failed += bool(entry.error)
            done += 1
            if progress is not None:
                progress(entry, done, len(todo))
    journal.close()
    return failed


def _batch(engine: Any, todo: Sequence[Todo], draw: Draw, policy: Any) -> Iterator[Entry]:
    requests: list[Request] = []
    places: list[Todo] = []
    asked: dict[tuple, Asked] = {}
    for item in todo:
        name = (item.rows.suite.name, item.number, item.variant)
        try:
            if name not in asked:
                asked[name] = ask(item.rows, item.number, item.variant, draw.protocol)
        except (MediaError, ValueError) as error:
            yield _failure(item, error)
            continue
        places.append(item)
        requests.append(_request(asked[name], item, draw, len(places) - 1))
    left = dict(enumerate(requests))
    try:
        for completion in engine.generate(requests):
            left.pop(completion.request.tag)
            yield _entry(places[completion.request.tag], completion, policy)
    except (MediaError, ValueError, RuntimeError) as error:
        log.warning("a batch failed (%s: %s); its %d unfinished requests are tried one by one", type(error).__name__, error, len(left))
    for tag, request in list(left.items()):  # nothing is left unless something failed
        yield _alone(engine, request, places[tag], policy)


def _alone(engine: Any, request: Request, item: Todo, policy: Any) -> Entry:
    try:
        return _entry(item, next(iter(engine.generate([request]))), policy)
    except (MediaError, ValueError, RuntimeError, StopIteration) as error:
        return _failure(item, error)


def _request(asked: Asked, item: Todo, draw: Draw, tag: int) -> Request:
    suite = item.rows.suite
    sampling = Sampling(temperature=draw.temperature, top_p=draw.top_p, max_tokens=draw.cap(item.rows), stop=suite.stop)
    return Request(asked.prompt, sampling, n=1, seed=sample_seed(draw.seed, suite.name, asked.id, item.sample), tag=tag)


def _failure(item: Todo, error: Exception) -> Entry:
    suite, variant, name, sample = item.key
    return Entry(suite, name, sample, "", variant, finish="error", error=f"{type(error).__name__}: {error}"[:500])


def _entry(item: Todo, completion: Completion, policy: Any) -> Entry:
    suite, variant, name, sample = item.key
    confidence = math.exp(sum(completion.logp) / len(completion.logp)) if completion.logp else None
    return Entry(
        suite, name, sample, completion.text, variant, completion.finish, len(completion.ids), round(completion.seconds, 4),
        confidence=None if confidence is None else round(min(1.0, confidence), 6), input=provenance(completion, policy),
    )  # fmt: skip


def provenance(completion: Completion, policy: Any) -> dict[str, Any]:
    """What the model was shown: the prompt's fingerprint, its length in tokens, pictures before and after resizing, frames of videos."""
    prompt = completion.request.prompt
    seen: dict[str, Any] = {"prompt": prompt.key, "media": [medium.key[:12] for medium in prompt.images + prompt.videos]}
    if policy is not None:
        encoded = policy.encode(prompt)
        seen["tokens"] = len(encoded.ids)
        seen["spaces"] = [[*space.original, *space.seen, space.units] for space in encoded.spaces]
    return seen


def clock(started: float) -> str:
    """Minutes and seconds since."""
    passed = int(time.monotonic() - started)
    return f"{passed // 60}:{passed % 60:02d}"
