"""Advantages re-weighted by confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.advantage.grpo import GRPO
from vlrl.registry import register
from vlrl.types import Group, Rollout


@register("progrpo")
@dataclass(frozen=True)
class ProGRPO(GRPO):
    """A_i = GRPO_i + alpha (c(q) - c(o_i | q)), unless all rewards of the group are 0.

    c(q) is field `prompt_confidence`; c(o|q) = exp(mean log pi) over the `share` of a rollout's tokens of lowest probability.
    Paper: Li et al. 2026, arXiv:2602.05281, eq. 7-9 (share 0.2).  Deviates: alpha is vlrl's.
    Edge: a group that is all right has a signal: towards the completions the policy is less sure of.
    """

    alpha: float = 0.3
    share: float = 0.2
    needs = ("prompt_confidence",)

    def confidence(self, rollout: Rollout) -> float:
        """c(o|q) of one rollout."""
        logp = sorted(rollout.signals.get("old_logp") or rollout.logp)
        low = logp[: max(1, math.ceil(self.share * len(logp) - 1e-9))]
        return math.exp(math.fsum(low) / len(low)) if low else 1.0

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        result = []
        for group, row in zip(groups, super().__call__(groups)):
            if any(group.rewards):
                row = [a + self.alpha * (r.signals["prompt_confidence"][0] - self.confidence(r)) for a, r in zip(row, group)]
            result.append(row)
        return result
