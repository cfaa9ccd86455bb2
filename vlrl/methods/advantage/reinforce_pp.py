"""Batch-normalised REINFORCE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.methods.advantage.grpo import GroupRelative, mean
from vlrl.registry import register
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("reinforce_pp")
@dataclass(frozen=True)
class ReinforcePP(GroupRelative):
    """A_i = (s_i - mean s) / sqrt(var s + eps) over all TOKENS of the step, with s_i = r_i, or r_i - mean_G r with `baseline`.

    Paper: Hu 2025 (REINFORCE++), arXiv:2501.03262, eq. 4-5 (baseline: sec. 3.2). A rollout's value counts once per token, with the unbiased
    variance, as in verl. The paper's KL reward is `kl_in_reward` (shape) or `kl_return` (credit).
    Edge: with `baseline`, a group of equal rewards has s = 0, and the batch mean is not taken off again, so that it stays without signal.
    """

    baseline: bool = False
    eps: float = 1e-8

    def check(self, run: Run) -> None:
        if self.baseline:
            super().check(run)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        scores = [[r - (mean(group.rewards) if self.baseline else 0.0) for r in group.rewards] for group in groups]
        pairs = [(s, len(rollout)) for row, group in zip(scores, groups) for s, rollout in zip(row, group)]
        tokens = sum(n for _, n in pairs)
        centre = math.fsum(s * n for s, n in pairs) / max(tokens, 1)
        variance = math.fsum(n * (s - centre) ** 2 for s, n in pairs) / max(tokens - 1, 1)
        shift = 0.0 if self.baseline else centre
        if variance < 1e-24:  # all equal: rounding must not be blown up
            return [[0.0] * len(row) for row in scores]
        return [[(s - shift) / math.sqrt(variance + self.eps) for s in row] for row in scores]
