"""G independent samples of every prompt: the default."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vlrl.registry import register
from vlrl.stages import Strategy
from vlrl.types import Group, Prompt, Request, Rollout, Sampling

if TYPE_CHECKING:
    from vlrl.run import Run


@dataclass(frozen=True)
class Seeds:
    """Seeds by address: a function of the run's seed, its phase and step, the prompt, and how often it was asked for in this step.

    A row that several ranks drew has a stream of its own on each: all but the first to draw it add their rank.
    """

    state: dict[str, Any] = field(default_factory=lambda: {"at": None, "asked": {}})

    def __call__(self, run: Run, prompt: Prompt) -> int:
        at = (run.seed, getattr(run, "phase", ""), run.step)
        if self.state["at"] != at:
            self.state.update(at=at, asked={})
        asked = self.state["asked"]
        address = f"{prompt.row.id}/{prompt.key}"
        asked[address] = asked.get(address, 0) + 1
        tally = getattr(run, "tally", None)
        rank = (tally.shared[prompt.row.id],) if tally and prompt.row.id in tally.shared else ()
        digest = hashlib.blake2b(repr((at, address, asked[address], *rank)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1  # 63 bits: every engine takes it


@register("independent")
@dataclass(frozen=True)
class Independent(Strategy):
    """y_1 .. y_n ~ pi(. | x), independently, for every prompt x.

    Paper: Shao et al. 2024, arXiv:2402.03300, section 4.1 (the group of GRPO). Edge: a prompt with count 0 gives an empty group; attempts
    whose `Sampling` is equal share one request (one prefill). Groups come back in the order of the prompts, rollouts in that of attempts.
    """

    seeds: Seeds = field(init=False, default_factory=Seeds, repr=False, compare=False)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        drawn = self.draw([(prompt, count, ()) for prompt, count in zip(prompts, counts, strict=True)], run)
        return [Group(prompt=prompt, rollouts=rollouts) for prompt, rollouts in zip(prompts, drawn)]

    def draw(self, wanted: Sequence[tuple[Prompt, int, tuple[int, ...]]], run: Run) -> list[list[Rollout]]:
        """`count` rollouts of every (prompt, count, completion tokens to go on from), in order; given tokens come on top of `max_tokens`."""
        requests = []
        for place, (prompt, count, given) in enumerate(wanted):
            for sampling, attempts in by_sampling(run, prompt, count):
                if given:
                    sampling = replace(sampling, max_tokens=sampling.max_tokens + len(given))
                requests.append(Request(prompt, sampling, len(attempts), self.seeds(run, prompt), given, (place, attempts)))
        found: dict[tuple[int, int], Rollout] = {}
        for completion in run.engine.generate(requests):
            place, attempts = completion.request.tag
            found[place, attempts[completion.index]] = run.make_rollout(completion)
        return [[found[place, attempt] for attempt in range(count)] for place, (_, count, _) in enumerate(wanted)]


def by_sampling(run: Run, prompt: Prompt, count: int) -> list[tuple[Sampling, list[int]]]:
    """The attempts 0 .. count - 1 of a prompt, gathered by what `run.decode` wants for them."""
    gathered: list[tuple[Sampling, list[int]]] = []
    for attempt in range(count):
        sampling = run.decode(prompt, attempt)
        members = next((members for known, members in gathered if known == sampling), None)
        if members is None:
            gathered.append((sampling, [attempt]))
        else:
            members.append(attempt)
    return gathered
