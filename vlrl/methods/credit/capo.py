"""Steps that a critic finds wrong pay for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl.registry import register
from vlrl.stages import Credit
from vlrl.types import Group, Rollout


@register("capo")
@dataclass(frozen=True)
class CAPO(Credit):
    """A_{i,t} = A_i - penalty on the tokens of steps judged wrong.

    `rollout.info["critiques"]` holds one list of wrong step numbers (0-based) per reading of a generative judge, `rollout.info["step_ends"]` where
    steps end (in tokens). `vote` "majority" takes steps that more than half of the readings name, "union" any, "intersection" all.
    Paper: Xie et al. 2025, arXiv:2508.02298, eq. 5-8.  Deviates: the penalty's size and its being subtracted after the normalisation (no code was
    released).
    Edge: no critiques: the advantage as it is.
    """

    penalty: float = 0.5
    vote: Literal["majority", "union", "intersection"] = "majority"

    def wrong_steps(self, rollout: Rollout) -> set[int]:
        """Numbers of the steps that the readings agree are wrong."""
        readings = [set(reading) for reading in rollout.info.get("critiques", [])]
        needed = {"majority": math.floor(len(readings) / 2) + 1, "union": 1, "intersection": len(readings)}[self.vote]
        votes = Counter(step for reading in readings for step in reading)
        return {step for step, count in votes.items() if count >= needed}

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        result = []
        for a, rollout in zip(advantages, group, strict=True):
            values, start, wrong = [a] * len(rollout), 0, self.wrong_steps(rollout)
            for step, end in enumerate(rollout.info.get("step_ends", [])):
                if step in wrong:
                    values[start:end] = [a - self.penalty] * (min(end, len(rollout)) - start)
                start = end
            result.append(values)
        return result
