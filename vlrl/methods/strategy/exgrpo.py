"""One of a prompt's own earlier successes among its new samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlrl.methods.strategy.independent import Independent
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Prompt, Rollout

if TYPE_CHECKING:
    from vlrl.run import Run


@register("experience")
@dataclass(frozen=True)
class WithExperience(Independent):
    """Prompts that sampler `experience` drew from its pool: n - 1 samples and the stored rollout (source "replay") with the least mean -log pi.

    Paper: Zhan et al. 2025 (ExGRPO), arXiv:2510.02245, sec. 4.1: the trajectory that the present policy is surest of. Deviates: the paper and its
    script take the lowest mean entropy; the release's other measure, the perplexity of the stored tokens, needs no distribution and is taken here.
    A stored rollout keeps the log-probs and the temperature that it was sampled with. Edge: count 1 and new prompts are sampled as ever; a single
    stored rollout is not scored.
    """

    def check(self, run: Run) -> None:
        if run.sampler.name != "experience":
            raise ConfigError(f"strategy 'experience' takes what sampler 'experience' keeps; the sampler is {run.sampler.name!r}")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        sampler: Any = run.sampler
        kept = [sampler.kept(prompt.row) if count > 1 else [] for prompt, count in zip(prompts, counts, strict=True)]
        groups = super().__call__(prompts, [count - bool(items) for count, items in zip(counts, kept)], run)
        asked = [(group.prompt, item["ids"]) for group, items in zip(groups, kept) if len(items) > 1 for item in items]
        scores = iter(run.engine.score_all(asked) if asked else [])
        for group, items in zip(groups, kept):
            if not items:
                continue
            surest = [-math.fsum(logp) / len(logp) for logp in (next(scores) for _ in items)] if len(items) > 1 else [0.0]
            item = items[surest.index(min(surest))]
            group.rollouts.append(
                Rollout(group.prompt, list(item["ids"]), item["text"], list(item["logp"]), source="replay", temperature=item["temperature"],
                        spaces=tuple(run.policy.spaces(group.prompt)), version=run.policy.version)
            )  # fmt: skip
        return groups
