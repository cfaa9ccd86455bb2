"""CAPO: credit assignment with a generative process reward model; tokens of steps that the judge finds wrong get a lower reward.

`capo` is an advantage estimator per token, for `token_credit: {name: per_token}`. It reads the annotations CRITIQUES and STEP_ENDS, which a judge
plug-in writes; none is shipped.

Paper: Xie et al. 2025 (CAPO), arXiv:2508.02298: token rewards, outcome 2 and process 1, votes.
Deviates: that the normalisation is over the tokens of the group is vlrl's reading (no code was released).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl.capabilities import Annotation
from vlrl.context import RunContext
from vlrl.methods.core.advantage import GroupRelative, set_token_advantages, whiten_rows
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.registry import register
from vlrl.stages import TOKEN_ADVANTAGES
from vlrl.types import Group, Rollout

CRITIQUES: Annotation[list[list[int]]] = Annotation(
    "capo.critiques", list, hint="a judge plug-in that writes it", doc="one list of wrong step numbers (0-based) per sample of the judge"
)
STEP_ENDS: Annotation[list[int]] = Annotation(
    "capo.step_ends", list, hint="a judge plug-in that writes it", doc="where each step of the rollout ends, in tokens"
)


@register("capo")
@dataclass(frozen=True)
class CAPO(GroupRelative):
    """CAPO: outcome reward minus a process penalty on the tokens of wrong steps, normalised over the group's tokens.

        A_{i,t} = whiten over all tokens of the group of  R_{i,t} = outcome r_i - process 1[t is in a step judged wrong]

    `vote`: "majority" takes the steps that at least half of the judge's samples name, "union" any, "intersection" all.
    Edge: without critiques rewards differ between rollouts only.
    """

    outcome: float = 2.0
    process: float = 1.0
    vote: Literal["majority", "union", "intersection"] = "majority"
    provides = (TOKEN_ADVANTAGES,)

    def check(self, run: RunContext) -> None:
        super().check(run)
        check_token_credit(run, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        rows: list[list[float]] = []
        for group in groups:
            own = [self.token_rewards(rollout) for rollout in group]
            whiten_rows(own, group.rollouts)
            rows += own
        return set_token_advantages(groups, rows)

    def wrong_steps(self, rollout: Rollout) -> set[int]:
        """Numbers of the steps that the vote finds wrong."""
        samples = [set(sample) for sample in CRITIQUES.get(rollout, [])]
        needed = {"majority": math.ceil(len(samples) / 2), "union": 1, "intersection": len(samples)}[self.vote]
        votes = Counter(step for sample in samples for step in sample)
        return {step for step, count in votes.items() if count >= needed}

    def token_rewards(self, rollout: Rollout) -> list[float]:
        """R_{i,t}, one reward per token."""
        rewards, start, wrong = [self.outcome * rollout.reward] * len(rollout), 0, self.wrong_steps(rollout)
        for step, end in enumerate(STEP_ENDS.get(rollout, [])):
            if step in wrong:
                rewards[start:end] = [self.outcome * rollout.reward - self.process] * (min(end, len(rollout)) - start)
            start = end
        return rewards
