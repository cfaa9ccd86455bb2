"""CURE: critical-token-guided re-sampling, branches that leave each sample before a token of high entropy.

`cure` is the rollout strategy of the paper's first stage; the second stage is DAPO on plain samples
(configs/methods/cure.yaml).

Paper: Li et al. 2025 (CURE), arXiv:2508.11016; checked against dapo_ray_trainer.py and run_cure_stage_1.sh of
the release (n1 4, n2 3, top_k 20). Deviates: entropies are those of the `alternatives` likeliest tokens, as
the engine reports them, not of the vocabulary; a branch keeps to the length limit of a whole rollout, which
the release counts from the branching point on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.methods.common.branching import Branching, branch_request, branch_rollout, entropy
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import PhaseContext, SamplingContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Group, Prompt, Rollout

BRANCH: Annotation[tuple[int, int]] = Annotation(
    "cure.branch",
    (tuple, list),
    hint="rollout: {name: cure}",
    doc=(
        "of a branch: place in the group of the rollout that it leaves, and the number of tokens that it "
        "keeps of that one"
    ),
)


@register("cure")
@dataclass(frozen=True)
class Cure(Branching):
    """CURE: n1 samples, and for each of them n2 = `branches` continuations of its tokens before a critical
    one; n1 + n1 n2 = n in one group.

    The critical token is drawn uniformly from the `top_k` of highest entropy (special tokens and those of at
    most one character are passed over). Only the new tokens of a branch are trained on; the tokens before
    them are the other rollout's, and part of the prompt in the release. Edge: n1 is n // (1 + branches), and
    the remainder are samples without branches; for a rollout without a critical token the branches are new
    samples from the prompt.
    """

    branches: int = 3
    top_k: int = 20
    provides = (BRANCH,)

    def __post_init__(self) -> None:
        if min(self.branches, self.top_k) < 1 or self.alternatives < 2:
            raise ValueError(
                f"branches={self.branches} and top_k={self.top_k} must be at least 1, "
                f"alternatives={self.alternatives} at least 2"
            )

    def check(self, phase: PhaseContext) -> None:
        if phase.group_size < 1 + self.branches:
            raise ConfigError(
                f"rollout cure: group_size {phase.group_size} is too small for a sample with {self.branches} "
                "branches; "
                f"use a multiple of {1 + self.branches}, or fewer branches"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        branched = [count // (1 + self.branches) for count in counts]
        groups = self.sample_roots(
            prompts, [count - n * self.branches for count, n in zip(counts, branched, strict=True)], run
        )
        requests = []
        for group, n in zip(groups, branched, strict=True):
            for place in range(n):
                seed = self.seeds(run, group.prompt)
                end = self.branching_point(group.rollouts[place], run, seed)
                sampling = run.sampling(group.prompt, len(group) + place)
                requests.append(
                    branch_request(
                        group.rollouts[place], end, sampling, seed, self.branches, tag=(group, place, end)
                    )
                )
        found = {(id(c.request), c.index): c for c in run.engine.generate(requests)}
        for request in requests:
            group, place, end = request.tag
            for index in range(request.n):
                rollout = branch_rollout(
                    run, found[id(request), index], group.rollouts[place], end, trained=False
                )
                BRANCH.set(rollout, (place, end))
                group.rollouts.append(rollout)
        return self.drop_alternatives(groups)

    def branching_point(self, rollout: Rollout, run: SamplingContext, seed: int) -> int:
        """The number of its tokens that the branches keep."""
        tokenizer: Any = run.policy.tokenizer
        special = set(tokenizer.all_special_ids)
        words = [tokenizer.decode([token]) for token in rollout.ids]
        entropies = [entropy(token) for token in self.alternatives_of(rollout, run)]
        places = critical(entropies, words, self.top_k, [token in special for token in rollout.ids])
        return random.Random(seed).choice(places) if places else 0


def critical(
    entropies: Sequence[float], words: Sequence[str], top_k: int, special: Sequence[bool]
) -> list[int]:
    """Up to `top_k` positions by falling entropy: not the first, no special token, and more than one
    character besides blanks."""
    usable = [t for t in range(1, len(words)) if not special[t] and len(words[t].strip()) > 1]
    return sorted(usable, key=lambda t: (-entropies[t], t))[:top_k]
