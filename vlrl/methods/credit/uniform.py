"""The same advantage for every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import Credit
from vlrl.types import Group


@register("uniform")
@dataclass(frozen=True)
class Uniform(Credit):
    """A_{i,t} = A_i.

    Paper: Shao et al. 2024, arXiv:2402.03300, sec. 4.1.2 (outcome supervision).
    """

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        return [[a] * len(rollout) for a, rollout in zip(advantages, group, strict=True)]
