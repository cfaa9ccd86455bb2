"""Writing-Zero's BRPO: rollouts are compared with one of their own group; the verdicts are the advantages.

    writing_zero            advantage: the reward itself, without mean and standard deviation
    writing_zero.balanced   group filter: drops groups in which the reference is nearly best or nearly worst

The rewards are those of `judged_reference`. Paper: Jia et al. 2025 (Writing-Zero), arXiv:2506.00103.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import AdvantageEstimator, GroupFilter
from vlrl.types import FilterDecision, Group


@register("writing_zero")
@dataclass(frozen=True)
class WritingZero(AdvantageEstimator):
    """BRPO's advantage: A_i = R_i, with R_i = +1 for a win over the group's reference, -1 for a loss, 0 for
    the reference itself.

    Paper: Jia et al. 2025 (Writing-Zero), arXiv:2506.00103, sec. 3.3: the reference is the baseline, so that
    nothing is subtracted or divided by. Edge: a group in which all lose pushes all of them down.
    """

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return [list(group.rewards) for group in groups]


@register("writing_zero.balanced")
@dataclass(frozen=True)
class WritingZeroBalanced(GroupFilter):
    """BRPO's dynamic sampling: drops a group with |sum_i R_i| / G > `most`, whose reference is too good or
    too bad to tell the others apart.

    Paper: Jia et al. 2025 (Writing-Zero), arXiv:2506.00103, sec. 3.3: 0.6. Edge: an empty group is dropped.
    """

    most: float = 0.6

    def __call__(self, group: Group) -> FilterDecision:
        if not len(group):
            return FilterDecision(False, "empty group")
        lean = abs(math.fsum(group.rewards)) / len(group)
        if lean > self.most + 1e-9:
            return FilterDecision(False, f"one-sided against its reference ({lean:.2f})")
        return FilterDecision(True)
