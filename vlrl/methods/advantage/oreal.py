"""Clone the right, push away the wrong in proportion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import Advantage
from vlrl.types import Group


@register("oreal")
@dataclass(frozen=True)
class OREAL(Advantage):
    """Right rollouts: A = `positive`. Wrong ones: A = -`negative` * (share of right among the others), RLOO's reshaped reward.

    With surrogate `reinforce` the first is behaviour cloning of best-of-n samples, the second policy gradient on failures. `one_each` keeps the
    first right and the first wrong rollout of a group and gives the others zero. Groups that are all right or all wrong have no signal.
    Paper: Lyu et al. 2025, arXiv:2502.06781, eq. 7-8; the released config has 1.0, 0.5, one rollout of each kind, KL 0.01.
    """

    positive: float = 1.0
    negative: float = 0.5
    one_each: bool = True
    threshold: float = 0.5

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return [self.of_group([r > self.threshold for r in group.rewards]) for group in groups]

    def of_group(self, right: Sequence[bool]) -> list[float]:
        """Advantages of one group."""
        if all(right) or not any(right):
            return [0.0] * len(right)
        share = sum(right) / (len(right) - 1)
        values = [self.positive if r else -self.negative * share for r in right]
        if not self.one_each:
            return values
        kept = {right.index(True), right.index(False)}
        return [v if i in kept else 0.0 for i, v in enumerate(values)]
