"""Prefixes judged by what can be made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.methods.strategy.independent import Independent
from vlrl.registry import register
from vlrl.types import Group, Prompt, Request

if TYPE_CHECKING:
    from vlrl.run import Run


@register("pppo")
@dataclass(frozen=True)
class PrefixRollouts(Independent):
    """Each rollout is trained only on its first floor(share * n) tokens (at least 1); `continuations` more completions of that prefix are scored.

    The share is `share` until callback `pppo` raises it. Continuations (source "continuation") are not trained on; shape `pppo` makes their scores
    the prefix's reward.
    Paper: Sun et al. 2025 (PPPO), arXiv:2512.15274: prefix mask, first share 0.15, eight continuations.
    Edge: a prefix that is the whole rollout has no continuations.
    """

    continuations: int = 8
    share: float = 0.15
    state: dict[str, float] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or self.continuations < 1:
            raise ValueError(f"share={self.share} must be in (0, 1] and continuations={self.continuations} at least 1")
        self.state["share"] = self.share

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.update(state)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        share, requests = self.state["share"], []
        for group in groups:
            for index, rollout in enumerate(group):
                rollout.info["place"] = index
                kept = max(1, math.floor(share * len(rollout) + 1e-9))
                rollout.loss_mask = [t < kept for t in range(len(rollout))]
                if kept < len(rollout):
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
