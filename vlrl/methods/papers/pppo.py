"""PPPO: prefix policy optimization, training only on the beginnings of rollouts, which are rewarded by what
their continuations score.

    pppo                       rollout strategy: masks all but a prefix of each rollout, and samples
    continuations of it pppo.continuation_reward   reward shaping: the mean reward of a rollout and of the
    continuations of its prefix
    pppo.prefix_growth         callback: progressive prefix retention, longer prefixes when the held-out
    accuracy stops rising

Paper: Sun et al. 2025 (PPPO), arXiv:2512.15274. No code was released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.methods.common.correctness import check_heldout, heldout_accuracy
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import CallbackContext, PhaseContext, SamplingContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Callback, RewardShaping, State
from vlrl.types import Group, Prompt, Request

PREFIX: Annotation[int] = Annotation(
    "pppo.prefix",
    int,
    hint="rollout: {name: pppo}",
    doc=(
        "of a rollout its own place in the group, of a continuation the place of the rollout whose prefix "
        "it continues"
    ),
)


@dataclass
class PppoState(State):
    """The share of a rollout's tokens that are its prefix."""

    share: float


@register("pppo")
@dataclass(frozen=True)
class Pppo(Independent):
    """PPPO's rollouts: each is trained only on its prefix, from which `continuations` more completions are
    sampled and scored.

    The prefix has the first floor(share n) of the n tokens (at least 1). The share begins at `share`;
    callback `pppo.prefix_growth` raises it. Continuations (source "continuation") are not trained on; shaping
    `pppo.continuation_reward` makes their scores the prefix's reward. Paper: Sun et al. 2025 (PPPO),
    arXiv:2512.15274: prefix mask, first share 0.15, eight continuations.
    Edge: a prefix that is the whole rollout has no continuations.
    """

    continuations: int = 8
    share: float = 0.15
    provides = (PREFIX,)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or self.continuations < 1:
            raise ValueError(
                f"share={self.share} must be in (0, 1] and continuations={self.continuations} at least 1"
            )

    def init_state(self) -> PppoState:
        return PppoState(share=self.share)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        requests = []
        for group in groups:
            for index, rollout in enumerate(group):
                PREFIX.set(rollout, index)
                n = max(1, math.floor(self.state.share * len(rollout) + 1e-9))
                rollout.leave_out([t < n for t in range(len(rollout))])
                if n < len(rollout):
                    sampling, seed = run.sampling(group.prompt, index), self.seeds(run, group.prompt)
                    requests.append(
                        Request(
                            group.prompt,
                            sampling,
                            self.continuations,
                            seed,
                            tuple(rollout.ids[:n]),
                            (group, index),
                        )
                    )
        for completion in run.engine.generate(requests):
            group, index = completion.request.tag
            rollout = run.make_rollout(completion)
            rollout.source, rollout.trained = "continuation", False
            PREFIX.set(rollout, index)
            group.rollouts.append(rollout)
        return groups


@register("pppo.continuation_reward")
@dataclass(frozen=True)
class PppoContinuationReward(RewardShaping):
    """PPPO's continuation accumulated reward: r_i = the mean reward of rollout i and of the continuations of
    its prefix.

    Continuations keep their own reward. Paper: Sun et al. 2025 (PPPO), arXiv:2512.15274. Deviates: the mean,
    not the sum, so that rollouts with and without continuations can be compared; with an advantage that
    divides by the group's std, as the paper's, the two are the same. Edge: a prefix that is the whole rollout
    keeps its reward.
    """

    requires = (PREFIX,)

    def __call__(self, group: Group) -> list[float]:
        scores: dict[int, list[float]] = {}
        for rollout in group:
            scores.setdefault(PREFIX[rollout], []).append(rollout.reward)
        return [
            r.reward if r.source == "continuation" else sum(scores[PREFIX[r]]) / len(scores[PREFIX[r]])
            for r in group
        ]


@dataclass
class PppoPrefixGrowthState(State):
    """The held-out accuracy of the last evaluation; -1 before the first."""

    accuracy: float = -1.0


@register("pppo.prefix_growth")
@dataclass(frozen=True)
class PppoPrefixGrowth(Callback):
    """PPPO's progressive prefix retention: raises the prefix share by `step`, up to `max_share`, when the
    held-out accuracy has not risen.

    The accuracy is evaluated every `eval_every` steps of the phase and compared with the last one. Logs the
    share.
    Paper: Sun et al. 2025 (PPPO), arXiv:2512.15274: from 0.15 by 0.05 to 0.35. `eval_every` is vlrl's. Edge:
    the first evaluation changes nothing.
    """

    state_class = PppoPrefixGrowthState
    eval_every: int = 25
    step: float = 0.05
    max_share: float = 0.35
    requires = (PREFIX,)

    def __post_init__(self) -> None:
        if self.eval_every < 1:
            raise ValueError(
                f"eval_every={self.eval_every} must be at least 1: steps between two evaluations of the "
                "held-out accuracy"
            )

    def check(self, phase: PhaseContext) -> None:
        check_heldout(phase, "callbacks: pppo.prefix_growth")

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        strategy: Any = run.rollout
        prefix: PppoState = strategy.state
        if (run.phase_step + 1) % self.eval_every == 0:
            now = heldout_accuracy(run)
            if now is not None and now <= self.state.accuracy:
                prefix.share = max(prefix.share, min(prefix.share + self.step, self.max_share))
            self.state.accuracy = self.state.accuracy if now is None else now
        return {"share": prefix.share}
