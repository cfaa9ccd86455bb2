"""A model beside the policy, asked by rewards, environments and commands: batches, concurrency, deadlines, a
budget, a cache on disk, and what it cost.

    service.ask(asks) -> replies, in order; a reply that failed says why, and raises nothing

The model is served by any engine. Requests of a `remote` engine (an OpenAI-compatible endpoint, with its own
retries and backoff) are calls of their own, `concurrency` at a time; another engine gets all of them as one
batch.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import Engine
from vlrl.services.files import append_jsonl, read_jsonl
from vlrl.types import Completion, Media, Prompt, Request, Row, Sampling

FORMAT = 1  # of the cache; another number asks everything again
TokenLogprobs = list[tuple[str, dict[str, float]]]


@dataclass(frozen=True)
class ModelAsk:
    """One request: a text with its pictures and videos, and how the reply is drawn. Two equal ones are asked
    once. `schema`: the JSON that the reply must be, where the engine can hold it to that."""

    text: str
    system: str = ""
    images: tuple[Media, ...] = ()
    videos: tuple[Media, ...] = ()
    temperature: float = 0.0
    max_tokens: int = 512
    seed: int = 0
    logprobs: int = 0
    schema: str = ""

    def messages(self) -> tuple[dict[str, Any], ...]:
        """Chat messages: pictures and videos stand before the text."""
        media = [{"type": "image"} for _ in self.images] + [{"type": "video"} for _ in self.videos]
        content: Any = [*media, {"type": "text", "text": self.text}] if media else self.text
        system = [{"role": "system", "content": self.system}] if self.system else []
        return (*system, {"role": "user", "content": content})

    def key(self, model: str) -> str:
        """The cache key: a digest of everything that the reply depends on."""
        values = {part.name: getattr(self, part.name) for part in fields(self)} | {
            "images": [media.key for media in self.images],
            "videos": [media.key for media in self.videos],
        }
        plain = json.dumps([FORMAT, model, values], sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(plain.encode()).hexdigest()[:40]


@dataclass(frozen=True)
class Reply:
    """What a model said. `failure`: why there is no reply ("" if there is one); it is never a verdict."""

    text: str = ""
    failure: str = ""
    cut: bool = False
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class ScoreAsk:
    """A completion whose tokens a model scores: `ids` after `prompt_ids`, or `text` after a prompt with
    media."""

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str = ""
    top: int = 1


@runtime_checkable
class ScoresPrompts(Protocol):
    """An engine that says how likely the tokens of a prompt are."""

    def prompt_logprobs(
        self, prompt: Prompt, prompt_ids: Sequence[int], ids: Sequence[int], text: str, top: int
    ) -> tuple[list[dict[int, float]], int]:
        """Per token of a completion the log-probs (nats, temperature 1) of the `top` most likely tokens and
        of its own, by id, and the tokens that were billed. A prompt without media is `prompt_ids`, one with
        media its messages, whose completion is `text`."""


@dataclass(frozen=True)
class Scored:
    """Log-probs by token id, one mapping per token of a completion. `failure`: why there are none."""

    places: tuple[Mapping[int, float], ...] = ()
    failure: str = ""


@dataclass
class Usage:
    """What a service did: calls sent, replies from the cache, calls that failed, tokens of prompts and
    replies."""

    calls: int = 0
    cached: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0

    def cost(self, prices: tuple[float, float]) -> float:
        """The price of the tokens, with prices per million prompt and reply tokens."""
        return (self.prompt_tokens * prices[0] + self.reply_tokens * prices[1]) / 1e6


@dataclass
class ModelService:
    """A model that answers requests, through an engine that is set up.

    Attributes:
        model: The model, pinned as name@revision.
        engine: It is owned by the service: `close` closes it.
        cache: A folder of JSONL files; every one in it is read, and `name` is written.
        name: The file for the replies of this process.
        concurrency: Calls at once, of a remote engine.
        max_calls: Calls that may be sent, over the whole run; 0: any number.
        max_tokens: Tokens that may be used, over the whole run; 0: any number. Calls under way are finished.
    """

    model: str
    engine: Engine
    cache: Path
    name: str = "replies.jsonl"
    concurrency: int = 16
    max_calls: int = 0
    max_tokens: int = 0
    usage: Usage = field(default_factory=Usage)
    replies: dict[str, Reply] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "@" not in self.model:
            raise ConfigError(
                f"judge: {self.model!r} is not pinned; write model@revision, so that the same judge can be "
                "asked again"
            )
        self.lock = threading.Lock()
        for file in sorted(self.cache.glob("*.jsonl")):
            for entry in read_jsonl(file, {"key": str, "reply": str}):
                self.replies[entry["key"]] = Reply(
                    entry["reply"], cut=bool(entry.get("cut")), logprobs=_pairs(entry.get("logprobs"))
                )

    def ask(self, asks: Sequence[ModelAsk]) -> list[Reply]:
        """The replies, in order. Equal asks are sent once, cached ones not at all; a failure is not
        cached."""
        keys = [ask.key(self.model) for ask in asks]
        new = {key: ask for key, ask in zip(keys, asks) if key not in self.replies}
        self.usage.cached += len(asks) - len(new)
        found = self._send(new) if new else {}
        return [found[key] if key in found else self.replies[key] for key in keys]

    def _send(self, asks: Mapping[str, ModelAsk]) -> dict[str, Reply]:
        self.cache.mkdir(parents=True, exist_ok=True)
        if self.engine.remote:
            with ThreadPoolExecutor(self.concurrency) as pool:
                return dict(zip(asks, pool.map(self._call, asks, asks.values())))
        found, requests = {}, []
        for key, ask in asks.items():
            if refusal := self._refusal():
                found[key] = self._failed(refusal)
            else:
                requests.append(request_of(ask, key))
        for completion in self.engine.generate(requests):
            found[completion.request.tag] = self._keep(completion.request.tag, completion)
        return found

    def _call(self, key: str, ask: ModelAsk) -> Reply:
        if refusal := self._refusal():
            return self._failed(refusal)
        try:
            (completion,) = self.engine.generate([request_of(ask, key)])
        except (RuntimeError, OSError, ValueError) as error:
            return self._failed(f"{type(error).__name__}: {error}")
        return self._keep(key, completion)

    def score(self, asks: Sequence[ScoreAsk]) -> list[Scored]:
        """The scores, in order, `concurrency` calls at a time, within the budget; nothing is cached. A
        failure is counted, and says why."""
        with ThreadPoolExecutor(self.concurrency) as pool:
            return list(pool.map(self._score, asks))

    def _score(self, ask: ScoreAsk) -> Scored:
        if not isinstance(self.engine, ScoresPrompts):
            raise ConfigError(f"engine {self.engine.name!r} gives no prompt_logprobs; use engine 'openai'")
        if refusal := self._refusal():
            return Scored(failure=self._failed(refusal).failure)
        try:
            places, billed = self.engine.prompt_logprobs(
                ask.prompt, ask.prompt_ids, ask.ids, ask.text, ask.top
            )
        except (RuntimeError, OSError, ValueError) as error:
            return Scored(failure=self._failed(f"{type(error).__name__}: {error}").failure)
        with self.lock:
            self.usage.prompt_tokens += billed or len(ask.prompt_ids) + len(ask.ids)
        return Scored(tuple(places))

    def _refusal(self) -> str:
        """Why another call may not be sent, or ""; a call that may be sent is counted."""
        with self.lock:
            used = self.usage.prompt_tokens + self.usage.reply_tokens
            if self.max_calls and self.usage.calls >= self.max_calls:
                return f"the budget of {self.max_calls} calls is used up"
            if self.max_tokens and used >= self.max_tokens:
                return f"the budget of {self.max_tokens} tokens is used up"
            self.usage.calls += 1
            return ""

    def _failed(self, why: str) -> Reply:
        with self.lock:
            self.usage.failed += 1
        return Reply(failure=why)

    def _keep(self, key: str, completion: Completion) -> Reply:
        reply = Reply(completion.text, cut=completion.finish == "length", logprobs=completion.text_logprobs)
        prompt, written = tokens_of(completion)
        entry: dict[str, Any] = {"key": key, "reply": reply.text, "tokens": [prompt, written]}
        if reply.cut:
            entry["cut"] = True
        if reply.logprobs:
            entry["logprobs"] = reply.logprobs
        with self.lock:
            self.usage.prompt_tokens += prompt
            self.usage.reply_tokens += written
            self.replies[key] = reply
            append_jsonl(self.cache / self.name, entry)
        return reply

    def estimate(self, asks: Sequence[ModelAsk], reply_tokens: int) -> Usage:
        """What `ask` would use: calls that are not cached, at four characters a token and `reply_tokens` a
        reply."""
        new = {key: ask for ask in asks if (key := ask.key(self.model)) not in self.replies}
        prompt = sum(len(ask.system) + len(ask.text) for ask in new.values()) // 4
        return Usage(len(new), len(asks) - len(new), 0, prompt, reply_tokens * len(new))

    def close(self) -> None:
        """Free the engine's resources."""
        self.engine.close()


def request_of(ask: ModelAsk, key: str) -> Request:
    """The request of an ask; its tag is the cache key."""
    row = Row(id=f"judge/{key[:16]}", question=ask.text)
    sampling = Sampling(
        temperature=ask.temperature,
        max_tokens=ask.max_tokens,
        top_logprobs=ask.logprobs,
        guided={"json": json.loads(ask.schema)} if ask.schema else None,
    )
    prompt = Prompt(row, ask.messages(), ask.images, ask.videos)
    return Request(prompt, sampling, seed=ask.seed, tag=key)


def tokens_of(completion: Completion) -> tuple[int, int]:
    """Tokens of the prompt and the reply: as billed, else the reply's ids, and four characters a token."""
    if any(completion.tokens):
        return completion.tokens
    asked = completion.request.prompt.text
    return len(asked) // 4, len(completion.ids) or len(completion.text) // 4


def _pairs(saved: Any) -> TokenLogprobs | None:
    return [(str(text), dict(top)) for text, top in saved] if isinstance(saved, list) else None
