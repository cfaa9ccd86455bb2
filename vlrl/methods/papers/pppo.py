"""Prefixes judged by what can be made of them.

A prefix is worth what its continuations are.

Prefixes that grow when learning stalls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.methods.common.held_out import accuracy, check_heldout
from vlrl.methods.core.rollout import Independent
from vlrl.registry import ConfigError, register
from vlrl.stages import Callback, RewardShaping
from vlrl.types import Group, Prompt, Request

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("pppo")
@dataclass(frozen=True)
class Pppo(Independent):
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

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        share, requests = self.state["share"], []
        for group in groups:
            for index, rollout in enumerate(group):
                rollout.info["place"] = index
                kept = max(1, math.floor(share * len(rollout) + 1e-9))
                rollout.loss_mask = [t < kept for t in range(len(rollout))]
                if kept < len(rollout):
                    sampling = run.sampling(group.prompt, index)
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


@register("pppo.continuation_reward")
@dataclass(frozen=True)
class PppoContinuationReward(RewardShaping):
    """r_i = the mean reward of rollout i and of the continuations of its prefix (strategy `pppo`); continuations keep their own.

    Paper: Sun et al. 2025 (PPPO), arXiv:2512.15274 (continuation accumulated reward).  Deviates: the mean, not the sum, so that rollouts with and
    without continuations compare; an advantage that divides by the group's std, as the paper's, is the same.  Edge: a prefix that is the whole
    rollout keeps its reward.
    """

    def check(self, run: RunContext) -> None:
        if run.rollout.name != "pppo":
            raise ConfigError(f"shape pppo reads the continuations that strategy {run.rollout.name!r} does not make; use strategy: {{name: pppo}}")

    def __call__(self, group: Group) -> list[float]:
        scores: dict[int, list[float]] = {}
        for rollout in group:
            scores.setdefault(rollout.info["place"], []).append(rollout.reward)
        return [r.reward if r.source == "continuation" else sum(scores[r.info["place"]]) / len(scores[r.info["place"]]) for r in group]


@register("pppo.prefix_growth")
@dataclass(frozen=True)
class PppoPrefixGrowth(Callback):
    """Strategy `pppo` retains `step` more of a rollout, up to `most`, whenever the held-out accuracy, looked at every `look` steps, has not risen.

    Paper: Sun et al. 2025 (PPPO), arXiv:2512.15274: progressive prefix retention, from 0.15 by 0.05 to 0.35.  The pace `look` is vlrl's.
    Edge: the first look sets the mark.
    """

    look: int = 25
    step: float = 0.05
    most: float = 0.35
    state: dict[str, float] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.look < 1:
            raise ValueError(f"look={self.look} must be at least 1: steps from one look at the held-out accuracy to the next")

    def check(self, run: RunContext) -> None:
        if run.rollout.name != "pppo":
            raise ConfigError(f"callbacks: pppo moves a share that strategy {run.rollout.name!r} does not have; use strategy: {{name: pppo}}")
        check_heldout(run, "callbacks: pppo")

    def __call__(self, run: RunContext, groups: Sequence[Group]) -> dict[str, float]:
        if (run.phase_step + 1) % self.look == 0:
            now = accuracy(run)
            if now <= self.state.get("accuracy", -1.0):
                share = run.rollout.state["share"]
                run.rollout.state["share"] = max(share, min(share + self.step, self.most))
            self.state["accuracy"] = now
        return {"share": run.rollout.state["share"]}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.update(state)
