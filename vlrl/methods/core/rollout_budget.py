"""Rollout budgets: how many rollouts each prompt gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import RolloutBudget
from vlrl.types import Prompt


@register("equal")
@dataclass(frozen=True)
class Equal(RolloutBudget):
    """The same number for every prompt: n_i = floor(total / P), and one more for the first (total mod P)
    prompts.

    vlrl original. Edge: no prompts give no counts. Units: rollouts.
    """

    def __call__(self, prompts: Sequence[Prompt], total: int) -> list[int]:
        if not prompts:
            return []
        share, rest = divmod(total, len(prompts))
        return [share + (i < rest) for i in range(len(prompts))]
