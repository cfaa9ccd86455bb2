"""Going on from a token in the middle of a rollout: through requests alone, so that every engine can."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from vlrl.methods.core.rollout import Independent, by_sampling
from vlrl.registry import ConfigError
from vlrl.types import Completion, Group, Prompt, Request, Rollout, Sampling

if TYPE_CHECKING:
    from vlrl.context import RunContext

T = TypeVar("T")


def spread(value: T | Sequence[T], n: int) -> list[T]:
    """One value for all of n tokens, or as many as there are."""
    return list(value)[:n] if isinstance(value, (list, tuple)) else [value] * n  # type: ignore[list-item]


def merged(values: list[T]) -> T | list[T]:
    """The value of all tokens where they agree."""
    return values[0] if len(set(values)) == 1 else values  # type: ignore[type-var]


def from_token(parent: Rollout, end: int, sampling: Sampling, seed: int, n: int = 1, insert: Sequence[int] = (), tag: Any = None) -> Request:
    """`n` samples that begin with the first `end` tokens of `parent`, then `insert`. `sampling.max_tokens` limits the whole, prefix included."""
    return Request(parent.prompt, sampling, n, seed, (*parent.ids[:end], *insert), tag)


def joined(run: RunContext, completion: Completion, parent: Rollout, end: int, trained: bool) -> Rollout:
    """The whole rollout: its first `end` tokens are `parent`'s own (log-probs, versions, temperatures, alternatives, as they were sampled).

    With `trained` they are trained on as they are in `parent`, else not at all; what was inserted after them is never trained on.
    """
    given = len(completion.request.prefix_ids)
    rollout = run.make_rollout(completion)
    length = len(rollout)
    own = spread(parent.loss_mask if parent.loss_mask is not None else True, end) if trained else [False] * end
    mask = [*own, *[False] * (given - end), *[True] * (length - given)]
    rollout.loss_mask = None if all(mask) else mask
    rollout.logp[:end] = parent.logp[:end]
    rollout.version = merged([*spread(parent.version, end), *spread(rollout.version, length)[end:]])
    rollout.temperature = merged([*spread(parent.temperature, end), *spread(rollout.temperature, length)[end:]])
    if rollout.top_logprobs is not None and parent.top_logprobs is not None:
        rollout.top_logprobs[:end] = parent.top_logprobs[:end]
    return rollout


def together(run: RunContext, works: Mapping[int, Generator[list[Request], list[Completion], T]]) -> dict[int, T]:
    """What generators return that yield requests (each for one completion or more) and are sent their completions, in order.

    They wait for each other, so that each round of requests is one call of the engine.
    """
    done: dict[int, T] = {}
    answers: dict[int, Any] = dict.fromkeys(works)
    while answers:
        asked: dict[int, list[Request]] = {}
        for place, answer in answers.items():
            try:
                asked[place] = works[place].send(answer)
            except StopIteration as end:
                done[place] = end.value
        found = {(id(c.request), c.index): c for c in run.engine.generate([r for requests in asked.values() for r in requests])} if asked else {}
        answers = {place: [found[id(r), i] for r in requests for i in range(r.n)] for place, requests in asked.items()}
    return done


def entropy(token: dict[int, float]) -> float:
    """-sum p log p over the alternatives, in nats: what the rest of the vocabulary adds is left out. 0 for a token that nothing is known of."""
    return -math.fsum(math.exp(logp) * logp for logp in token.values())


@dataclass(frozen=True)
class Branching(Independent):
    """What the strategies share that choose where to branch by the `alternatives` likeliest tokens of every place, as the engine tells them."""

    alternatives: int = 20

    def seen(self, sampling: Sampling) -> Sampling:
        """The same, with alternatives."""
        return replace(sampling, top_logprobs=max(self.alternatives, sampling.top_logprobs))

    def roots(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        """Independent samples, with their alternatives."""
        requests = []
        for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
            for sampling, attempts in by_sampling(run, prompt, count):
                requests.append(Request(prompt, self.seen(sampling), len(attempts), self.seeds(run, prompt), tag=(place, attempts)))
        found = {}
        for completion in run.engine.generate(requests):
            place, attempts = completion.request.tag
            found[place, attempts[completion.index]] = run.make_rollout(completion)
        return [Group(p, [found[place, a] for a in range(n)]) for place, (p, n) in enumerate(zip(prompts, counts, strict=True))]

    def known(self, rollout: Rollout, run: RunContext) -> list[dict[int, float]]:
        """Per token its likeliest alternatives, id to log-prob. Raises ConfigError where the engine tells none."""
        if rollout.top_logprobs is None:
            raise ConfigError(f"strategy {self.name} reads the alternatives of every token, which engine {run.engine.name!r} does not tell; "
                              "use engine hf, vllm or vllm_server")  # fmt: skip
        return rollout.top_logprobs

    def forget(self, groups: Sequence[Group]) -> list[Group]:
        """The groups without their alternatives, which nobody reads any more."""
        for group in groups:
            for rollout in group:
                rollout.top_logprobs = None
        return list(groups)
