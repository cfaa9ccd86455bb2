"""Prefixes judged by what can be made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.methods.strategy.independent import Independent
from vlrl.registry import register
from vlrl.types import Group, Prompt, Request

if TYPE_CHECKING:
    from vlrl.run import Run


@register("pppo")
@dataclass(frozen=True)
class PrefixRollouts(Independent):
    """Each rollout is trained only on its first ceil(share * n) tokens; `continuations` more completions of that prefix are sampled and scored.

    share rises from `start` to `end` over `grow` steps (linearly). Continuations (source "continuation") are not trained on; shape `pppo` makes
    their scores the prefix's reward.
    Paper: Sun et al. 2025 (PPPO), arXiv:2512.15274, sec. 4: progressive prefix retention and continuation accumulated reward.
    Deviates: the schedule's numbers are vlrl's.
    """

    continuations: int = 2
    start: float = 0.3
    end: float = 0.5
    grow: int = 100

    def share(self, step: int) -> float:
        """The retained share of a rollout at a step of the phase."""
        return self.start + (self.end - self.start) * min(step / max(self.grow, 1), 1.0)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        share, requests = self.share(run.phase_step), []
        for group in groups:
            for index, rollout in enumerate(group):
                rollout.info["place"] = index
                kept = min(len(rollout), max(1, math.ceil(share * len(rollout) - 1e-9)))
                rollout.loss_mask = [t < kept for t in range(len(rollout))]
                if kept < len(rollout) and self.continuations:
                    sampling = run.decode(group.prompt, index)
                    request = Request(
                        group.prompt, sampling, self.continuations, self.seeds(run, group.prompt), tuple(rollout.ids[:kept]), (group, index)
                    )
                    requests.append(request)
        for completion in run.engine.generate(requests):
            group, index = completion.request.tag
            rollout = run.make_rollout(completion)
            rollout.source, rollout.trained = "continuation", False
            rollout.info["place"] = index
            group.rollouts.append(rollout)
        return groups
