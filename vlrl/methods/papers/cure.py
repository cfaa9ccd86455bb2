"""Samples, and further ones that leave them at a token where the policy was unsure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlrl.methods.common.branching import Branching, entropy, from_token, joined
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Prompt, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


def critical(entropies: Sequence[float], words: Sequence[str], top_k: int, special: Sequence[bool]) -> list[int]:
    """Up to `top_k` positions by falling entropy: not the first, no special token, and more than one character besides blanks."""
    usable = [t for t in range(1, len(words)) if not special[t] and len(words[t].strip()) > 1]
    return sorted(usable, key=lambda t: (-entropies[t], t))[:top_k]


@register("cure")
@dataclass(frozen=True)
class Cure(Branching):
    """n1 samples, and for each n2 = `branches` more that go on from the tokens before a critical one: n1 + n1 n2 = n in one group.

    The critical token is drawn evenly from the `top_k` of highest entropy (special tokens and those of at most one character are passed over). Only
    what is new of a branch is trained on; its first tokens are the other rollout's, and on the prompt's side in the release too.
    Paper: Li et al. 2025 (CURE), arXiv:2508.11016; checked against dapo_ray_trainer.py and run_cure_stage_1.sh of the release (n1 4, n2 3, top_k 20).
    Deviates: entropies are those of the `alternatives` likeliest tokens, as the engine tells them, not of the vocabulary; a branch keeps to the
    length limit of a whole rollout, which the release counts anew after the branching point.
    Edge: n1 is n // (1 + branches), and what is left over are samples without branches; a rollout without a critical token is sampled anew instead.
    """

    branches: int = 3
    top_k: int = 20

    def __post_init__(self) -> None:
        if min(self.branches, self.top_k) < 1 or self.alternatives < 2:
            raise ValueError(f"branches={self.branches} and top_k={self.top_k} must be at least 1, alternatives={self.alternatives} at least 2")

    def check(self, run: RunContext) -> None:
        if run.group_size < 1 + self.branches:
            raise ConfigError(f"strategy cure: group_size {run.group_size} has no room for a sample with {self.branches} branches; "
                              f"use a multiple of {1 + self.branches}, or fewer branches")  # fmt: skip

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        rooted = [count // (1 + self.branches) for count in counts]
        groups = self.roots(prompts, [count - n * self.branches for count, n in zip(counts, rooted, strict=True)], run)
        requests = []
        for group, n in zip(groups, rooted, strict=True):
            for place in range(n):
                seed = self.seeds(run, group.prompt)
                end = self.branching_point(group.rollouts[place], run, seed)
                sampling = run.sampling(group.prompt, len(group) + place)
                requests.append(from_token(group.rollouts[place], end, sampling, seed, self.branches, tag=(group, place, end)))
        found = {(id(c.request), c.index): c for c in run.engine.generate(requests)}
        for request in requests:
            group, place, end = request.tag
            for index in range(request.n):
                rollout = joined(run, found[id(request), index], group.rollouts[place], end, trained=False)
                rollout.info["branch"] = (place, end)
                group.rollouts.append(rollout)
        return self.forget(groups)

    def branching_point(self, rollout: Rollout, run: RunContext, seed: int) -> int:
        """How many of its tokens the branches keep."""
        tokenizer: Any = run.policy.tokenizer
        hidden = set(tokenizer.all_special_ids)
        words = [tokenizer.decode([token]) for token in rollout.ids]
        entropies = [entropy(token) for token in self.known(rollout, run)]
        places = critical(entropies, words, self.top_k, [token in hidden for token in rollout.ids])
        return random.Random(seed).choice(places) if places else 0
