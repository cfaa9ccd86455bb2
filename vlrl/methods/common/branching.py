"""Branches: rollouts that continue from a token in the middle of another one, through requests alone, so that
every engine can sample them.

`Branching` is the base of the rollout strategies that choose where to branch by the likeliest alternatives at
each token.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from vlrl.methods.core.rollout import Independent, by_sampling
from vlrl.plugins.contexts import SamplingContext
from vlrl.plugins.registry import ConfigError
from vlrl.types import Completion, Group, Prompt, Request, Rollout, Sampling

T = TypeVar("T")


def per_token(value: T | Sequence[T], n: int) -> list[T]:
    """The values of n tokens, from one value for all of them or a sequence of values."""
    return list(value)[:n] if isinstance(value, (list, tuple)) else [value] * n  # type: ignore[list-item]  # T is never a list or tuple


def one_if_equal(values: list[T]) -> T | list[T]:
    """A single value where all tokens have the same one, else the list: the inverse of `per_token`."""
    return values[0] if values and all(value == values[0] for value in values) else values


def branch_request(
    parent: Rollout,
    end: int,
    sampling: Sampling,
    seed: int,
    n: int = 1,
    insert: Sequence[int] = (),
    tag: Any = None,
) -> Request:
    """`n` samples that begin with the first `end` tokens of `parent`, then `insert`. `sampling.max_tokens`
    limits the whole, prefix included."""
    return Request(parent.prompt, sampling, n, seed, (*parent.ids[:end], *insert), tag)


def branch_rollout(
    run: SamplingContext, completion: Completion, parent: Rollout, end: int, trained: bool
) -> Rollout:
    """The rollout of a completion of `branch_request`: its first `end` tokens keep the parent's log-probs,
    versions, temperatures and alternatives.

    With `trained` they are trained on as they are in `parent`, else not at all; inserted tokens are never
    trained on. The parent's tokens belong to the rollout's length, inserted ones do not.
    """
    given = len(completion.request.prefix_ids)
    rollout = run.make_rollout(completion)
    length = len(rollout)
    own = [*[False] * (given - end), *[True] * (length - given)]
    mask = [*(parent.trained_mask[:end] if trained else [False] * end), *own]
    sampled = [*parent.sampled[:end], *own]
    rollout.loss_mask = None if all(mask) else mask
    rollout.sampled_mask = None if sampled == mask else sampled
    rollout.logp[:end] = parent.logp[:end]
    rollout.version = one_if_equal(
        [*per_token(parent.version, end), *per_token(rollout.version, length)[end:]]
    )
    rollout.temperature = one_if_equal(
        [*per_token(parent.temperature, end), *per_token(rollout.temperature, length)[end:]]
    )
    if rollout.top_logprobs is not None and parent.top_logprobs is not None:
        rollout.top_logprobs[:end] = parent.top_logprobs[:end]
    return rollout


def run_in_rounds(
    run: SamplingContext, searches: Mapping[int, Generator[list[Request], list[Completion], T]]
) -> dict[int, T]:
    """Run generators that yield requests and are sent their completions, in order. Returns what each of them
    returns.

    The generators advance together, so that each round of requests is one call of the engine.
    """
    results: dict[int, T] = {}
    completions: dict[int, Any] = dict.fromkeys(searches)
    while completions:
        requested: dict[int, list[Request]] = {}
        for place, answer in completions.items():
            try:
                requested[place] = searches[place].send(answer)
            except StopIteration as end:
                results[place] = end.value
        every = [request for requests in requested.values() for request in requests]
        found = {(id(c.request), c.index): c for c in run.engine.generate(every)} if requested else {}
        completions = {
            place: [found[id(r), i] for r in requests for i in range(r.n)]
            for place, requests in requested.items()
        }
    return results


def entropy(token: dict[int, float]) -> float:
    """-sum p log p over a token's alternatives, in nats; the rest of the vocabulary is left out. 0 for a
    token without alternatives."""
    return -math.fsum(math.exp(logp) * logp for logp in token.values())


@dataclass(frozen=True)
class Branching(Independent):
    """Base of rollout strategies that choose where to branch by the `alternatives` likeliest tokens at every
    place, as the engine reports them."""

    alternatives: int = 20

    def with_alternatives(self, sampling: Sampling) -> Sampling:
        """The same sampling parameters, with the alternatives reported."""
        return replace(sampling, top_logprobs=max(self.alternatives, sampling.top_logprobs))

    def sample_roots(
        self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext
    ) -> list[Group]:
        """Independent rollouts with their alternatives: the trunks of the trees."""
        requests = []
        for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
            for sampling, attempts in by_sampling(run, prompt, count):
                tag = (place, attempts)
                requests.append(
                    Request(
                        prompt,
                        self.with_alternatives(sampling),
                        len(attempts),
                        self.seeds(run, prompt),
                        tag=tag,
                    )
                )
        found = {}
        for completion in run.engine.generate(requests):
            place, attempts = completion.request.tag
            found[place, attempts[completion.index]] = run.make_rollout(completion)
        return [
            Group(p, [found[place, a] for a in range(n)])
            for place, (p, n) in enumerate(zip(prompts, counts, strict=True))
        ]

    def alternatives_of(self, rollout: Rollout, run: SamplingContext) -> list[dict[int, float]]:
        """Per token its likeliest alternatives, id to log-prob. Raises ConfigError where the engine reports
        none."""
        if rollout.top_logprobs is None:
            raise ConfigError(
                f"rollout: {self.name!r} reads the alternatives of every token, which engine "
                f"{run.engine.name!r} does not report; "
                "use engine hf, vllm or vllm_server"
            )
        return rollout.top_logprobs

    def drop_alternatives(self, groups: Sequence[Group]) -> list[Group]:
        """The groups without their alternatives, which are not read after the branches are sampled."""
        for group in groups:
            for rollout in group:
                rollout.top_logprobs = None
        return list(groups)
