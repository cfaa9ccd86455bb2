"""GRPO-N: only the relative negatives of a group are trained on, to keep exploring for longer.

`twostage` is an advantage estimator. Paper: GRPO-N (with a sequence-level ratio GSPO-N), arXiv:2510.04028.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.core.advantage import GRPO
from vlrl.plugins.registry import register
from vlrl.types import Group


@register("twostage")
@dataclass(frozen=True)
class Twostage(GRPO):
    """GRPO-N's advantage: A_i' = min(A_i, 0), A_i the group-normalised advantage; rollouts above their
    group's mean have no gradient.

    Paper: GRPO-N (with a sequence-level ratio GSPO-N), arXiv:2510.04028. Unlike `nsr`, negative is relative
    to the group, so the worse of two partial scores counts. Deviates: mean and std are those of all rollouts,
    before clamping (from a description of the paper; its code was not seen). Edge: a group of equal rewards
    gives zeros.
    """

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return [[min(advantage, 0.0) for advantage in advantages] for advantages in super().__call__(groups)]
