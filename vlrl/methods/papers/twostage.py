"""Only the relative negatives of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.core.advantage import GRPO
from vlrl.registry import register
from vlrl.types import Group


@register("twostage")
@dataclass(frozen=True)
class Twostage(GRPO):
    """A_i' = min(A_i, 0), with A_i the group-normalised advantage: rollouts below their group's mean are pushed down, none is pulled up.

    Paper: GRPO-N (with a sequence-level ratio GSPO-N), arXiv:2510.04028. Unlike `nsr`, negative is relative to the group, so the worse of two
    partial scores counts. Deviations: mean and std are those of all rollouts, before clamping (from a description of the paper; its code was not
    seen). Edge: a group of equal rewards gives zeros.
    """

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return [[min(advantage, 0.0) for advantage in advantages] for advantages in super().__call__(groups)]
