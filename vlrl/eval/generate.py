"""Generation of a run's responses: every sample that the journal lacks is requested and journaled at once;
its cost can be estimated first."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.eval.journal import Entry, Journal, Key
from vlrl.eval.prompts import EvalPrompt, build_prompt, sample_seed
from vlrl.eval.records import SuiteData
from vlrl.types import Completion, MediaError, Request, Sampling

log = logging.getLogger("vlrl")
Progress = Callable[[Entry, int, int], None]  # the entry, samples done, samples in all
BYTES_PER_TOKEN = 5  # of a journal line: about four characters of text plus a share of the JSON syntax


@dataclass(frozen=True)
class GenerationSettings:
    """How responses are sampled. `max_tokens` 0 takes the suite's limit for the protocol. `batch` is the
    number of requests per engine call."""

    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 0
    seed: int = 0
    protocol: str = "direct"
    variants: tuple[str, ...] = ("plain",)
    batch: int = 256

    def token_limit(self, data: SuiteData) -> int:
        """The most tokens that a response may have."""
        return self.max_tokens or (
            data.suite.thinking_max_tokens if self.protocol == "thinking" else data.suite.max_tokens
        )

    def samples_of(self, variant: str) -> int:
        """Samples per record: variants other than "plain" are sampled once."""
        return self.samples if variant == "plain" else 1


@dataclass(frozen=True)
class PendingSample:
    """One sample that the journal does not have: of record `number` in a variant."""

    data: SuiteData
    number: int
    variant: str
    sample: int

    @property
    def key(self) -> Key:
        return (self.data.suite.name, self.variant, self.data.ids[self.number], self.sample)


def pending_samples(
    suites: Sequence[SuiteData],
    settings: GenerationSettings,
    entries: Mapping[Key, Entry],
    rank: int = 0,
    world: int = 1,
) -> list[PendingSample]:
    """The samples that this process still has to generate: every world-th of those without an error-free
    journal entry."""
    done = {key for key, entry in entries.items() if not entry.error}
    pending = []
    for data in suites:
        ids = data.ids
        for variant in settings.variants:
            for number, name in enumerate(ids):
                for sample in range(settings.samples_of(variant)):
                    if (data.suite.name, variant, name, sample) not in done:
                        pending.append(PendingSample(data, number, variant, sample))
    return pending[rank::world]


def generate_responses(
    engine: Any,
    pending: Sequence[PendingSample],
    settings: GenerationSettings,
    journal: Journal,
    policy: Any = None,
    progress: Progress | None = None,
) -> int:
    """Generates and journals the pending samples; returns how many failed. A record whose media or prompt is
    broken fails alone."""
    failed = done = 0
    for start in range(0, len(pending), settings.batch):
        for entry in _generate_batch(engine, pending[start : start + settings.batch], settings, policy):
            journal.add(entry)
            failed += bool(entry.error)
            done += 1
            if progress is not None:
                progress(entry, done, len(pending))
    journal.close()
    return failed


def _generate_batch(
    engine: Any, pending: Sequence[PendingSample], settings: GenerationSettings, policy: Any
) -> Iterator[Entry]:
    requests: list[Request] = []
    requested: list[PendingSample] = []  # by the tag of its request
    prompts: dict[tuple[str, int, str], EvalPrompt] = {}
    for sample in pending:
        key = (sample.data.suite.name, sample.number, sample.variant)
        try:
            if key not in prompts:
                prompts[key] = build_prompt(sample.data, sample.number, sample.variant, settings.protocol)
        except (MediaError, ValueError) as error:
            yield _failed_entry(sample, error)
            continue
        requested.append(sample)
        requests.append(_request(prompts[key], sample, settings, len(requested) - 1))
    unfinished = dict(enumerate(requests))
    try:
        for completion in engine.generate(requests):
            unfinished.pop(completion.request.tag)
            yield _entry(requested[completion.request.tag], completion, policy)
    except (MediaError, ValueError, RuntimeError) as error:
        log.warning(
            "a batch failed (%s: %s); its %d unfinished requests are tried one by one",
            type(error).__name__,
            error,
            len(unfinished),
        )
    for tag, request in list(unfinished.items()):  # empty unless the batch failed
        yield _generate_alone(engine, request, requested[tag], policy)


def _generate_alone(engine: Any, request: Request, sample: PendingSample, policy: Any) -> Entry:
    try:
        return _entry(sample, next(iter(engine.generate([request]))), policy)
    except (MediaError, ValueError, RuntimeError, StopIteration) as error:
        return _failed_entry(sample, error)


def _request(prompt: EvalPrompt, sample: PendingSample, settings: GenerationSettings, tag: int) -> Request:
    suite = sample.data.suite
    limit = settings.token_limit(sample.data)
    sampling = Sampling(
        temperature=settings.temperature, top_p=settings.top_p, max_tokens=limit, stop=suite.stop
    )
    return Request(
        prompt.prompt,
        sampling,
        n=1,
        seed=sample_seed(settings.seed, suite.name, prompt.id, sample.sample),
        tag=tag,
    )


def _failed_entry(sample: PendingSample, error: Exception) -> Entry:
    suite, variant, name, number = sample.key
    return Entry(
        suite, name, number, "", variant, finish="error", error=f"{type(error).__name__}: {error}"[:500]
    )


def _entry(sample: PendingSample, completion: Completion, policy: Any) -> Entry:
    suite, variant, name, number = sample.key
    confidence = math.exp(sum(completion.logp) / len(completion.logp)) if completion.logp else None
    return Entry(
        suite,
        name,
        number,
        completion.text,
        variant,
        completion.finish,
        len(completion.ids),
        round(completion.seconds, 4),
        confidence=None if confidence is None else round(min(1.0, confidence), 6),
        input=provenance(completion, policy),
    )


def provenance(completion: Completion, policy: Any) -> dict[str, Any]:
    """The model's input as the journal records it: the prompt's key, its length in tokens, the keys of its
    media, and their coordinate spaces."""
    prompt = completion.request.prompt
    shown: dict[str, Any] = {
        "prompt": prompt.key,
        "media": [medium.key[:12] for medium in prompt.images + prompt.videos],
    }
    if policy is not None:
        encoded = policy.encode(prompt)
        shown["tokens"] = len(encoded.ids)
        shown["spaces"] = [[*space.original, *space.seen, space.units] for space in encoded.spaces]
    return shown


def elapsed(started: float) -> str:
    """Minutes and seconds since `started` (of `time.monotonic`), as "3:07"."""
    seconds = int(time.monotonic() - started)
    return f"{seconds // 60}:{seconds % 60:02d}"


# --- cost ---------------------------------------------------------------------------------------------------


def estimate_cost(
    suites: Sequence[SuiteData],
    pending: Sequence[PendingSample],
    settings: GenerationSettings,
    served: Any,
    prices: tuple[float, float] = (0.0, 0.0),
    probe: int = 0,
) -> dict[str, Any]:
    """Requests, upper bounds of tokens, disk and price, and (with a probe of that many requests) an estimate
    of the seconds.

    Prompt tokens are measured on up to four records of a suite; `prices` are per million prompt and response
    tokens. The probe's responses are not kept.
    """
    lengths = {data.suite.name: _prompt_tokens(data, settings, served.policy) for data in suites}
    limits = {data.suite.name: settings.token_limit(data) for data in suites}
    prompts = sum(lengths[sample.data.suite.name] for sample in pending)
    responses = sum(limits[sample.data.suite.name] for sample in pending)
    cost: dict[str, Any] = {
        "requests": len(pending),
        "prompt_tokens": int(prompts),
        "response_tokens_at_most": int(responses),
        "disk_bytes_at_most": int(responses * BYTES_PER_TOKEN + 400 * len(pending)),
        "price_at_most": round((prompts * prices[0] + responses * prices[1]) / 1e6, 4),
    }
    if probe and pending:
        chosen = list(pending)[:: max(1, len(pending) // probe)][:probe]
        started = time.monotonic()
        entries = list(_generate_batch(served.engine, chosen, settings, served.policy))
        seconds = time.monotonic() - started
        tokens = sum(entry.tokens for entry in entries)
        cost["probe"] = {"requests": len(entries), "tokens": tokens, "seconds": round(seconds, 2)}
        cost["seconds_about"] = round(seconds / len(entries) * len(pending), 1)
    return cost


def _prompt_tokens(data: SuiteData, settings: GenerationSettings, policy: Any) -> float:
    """Mean prompt length over up to four records; without a policy, four characters count as a token and a
    picture or video as 1,000."""
    numbers = range(0, len(data), max(1, len(data) // 4))
    lengths = []
    for number in list(numbers)[:4]:
        prompt = build_prompt(data, number, "plain", settings.protocol).prompt
        text = str(prompt.row.question)
        lengths.append(
            len(policy.encode(prompt).ids)
            if policy is not None
            else len(text) / 4 + 1000 * len(prompt.images + prompt.videos)
        )
    return sum(lengths) / max(1, len(lengths))


def describe_cost(cost: Mapping[str, Any]) -> str:
    """An estimate of `estimate_cost` as one line of text."""
    megabytes = cost["disk_bytes_at_most"] / 1e6
    parts = [
        (
            f"{cost['requests']} requests, {cost['prompt_tokens']:,} prompt tokens, at most "
            f"{cost['response_tokens_at_most']:,} response tokens"
        )
    ]
    parts.append(f"at most {megabytes:.1f} MB of journal")
    if cost["price_at_most"]:
        parts.append(f"at most {cost['price_at_most']:.2f} to pay")
    if "seconds_about" in cost:
        parts.append(f"about {cost['seconds_about']:.0f} s (from a probe of {cost['probe']['requests']})")
    return "; ".join(parts)
