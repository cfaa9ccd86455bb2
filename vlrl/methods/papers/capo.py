"""Steps that a critic finds wrong pay for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vlrl.methods.core.advantage import GroupRelative, check_credit, hand_over, whiten_rows
from vlrl.registry import register
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("capo")
@dataclass(frozen=True)
class CAPO(GroupRelative):
    """A_{i,t} = mean 0, variance 1 over all tokens of the group of  R_{i,t} = outcome r_i - process 1[t is in a step judged wrong].

    `rollout.info["critiques"]` holds one list of wrong step numbers (0-based) per reading of a generative judge, `rollout.info["step_ends"]` where
    steps end (in tokens). `vote` "majority" takes steps that at least half of the readings name, "union" any, "intersection" all. Credit `per_token`
    hands the result out.
    Paper: Xie et al. 2025, arXiv:2508.02298: token rewards, outcome 2 and process 1, votes.  Deviates: that the normalisation is over the tokens of
    the group is vlrl's reading (no code was released).
    Edge: no critiques: rewards differ between rollouts only.
    """

    outcome: float = 2.0
    process: float = 1.0
    vote: Literal["majority", "union", "intersection"] = "majority"

    writes_tokens = True

    def check(self, run: RunContext) -> None:
        super().check(run)
        check_credit(run, "capo")

    def wrong_steps(self, rollout: Rollout) -> set[int]:
        """Numbers of the steps that the readings agree are wrong."""
        readings = [set(reading) for reading in rollout.info.get("critiques", [])]
        needed = {"majority": math.ceil(len(readings) / 2), "union": 1, "intersection": len(readings)}[self.vote]
        votes = Counter(step for reading in readings for step in reading)
        return {step for step, count in votes.items() if count >= needed}

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        rows = []
        for group in groups:
            mine = [self.rewards(rollout) for rollout in group]
            whiten_rows(mine)
            rows += mine
        return hand_over(groups, rows)

    def rewards(self, rollout: Rollout) -> list[float]:
        """One reward per token."""
        row, start, wrong = [self.outcome * rollout.reward] * len(rollout), 0, self.wrong_steps(rollout)
        for step, end in enumerate(rollout.info.get("step_ends", [])):
            if step in wrong:
                row[start:end] = [self.outcome * rollout.reward - self.process] * (min(end, len(rollout)) - start)
            start = end
        return row
