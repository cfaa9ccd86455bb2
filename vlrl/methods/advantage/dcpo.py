"""Advantages smoothed over a prompt's past."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.methods.advantage.grpo import centred, mean, std
from vlrl.registry import register
from vlrl.stages import Advantage
from vlrl.types import Group


@register("dcpo")
@dataclass(frozen=True)
class SmoothAdvantage(Advantage):
    """A = the smaller in magnitude of ((i - 1) A_new + A_tot) / i and (A_new + (i - 1) A_tot) / i on the i-th visit of a prompt.

    A_new is of this group's rewards, A_tot of all the prompt's rewards so far, each (r - mean) / (std + eps).
    Paper: Yang et al. 2025 (DCPO), arXiv:2509.02333, eq. 9-11.  Edge: on a first visit it is GRPO; a group of equal rewards has a signal if the
    prompt's past differs from it.  The past (count, sum, sum of squares, visits per row id) is in the checkpoint.
    """

    eps: float = 1e-6
    past: dict[str, list[float]] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return [self.of_group(group.row.id, group.rewards) for group in groups]

    def of_group(self, key: str, rewards: Sequence[float]) -> list[float]:
        """Advantages of one group, and the prompt's statistics brought up to date."""
        count, total, squares, visits = self.past.get(key, [0.0, 0.0, 0.0, 0.0])
        count, total, visits = count + len(rewards), total + sum(rewards), visits + 1
        squares += sum(r * r for r in rewards)
        self.past[key] = [count, total, squares, visits]
        if not rewards:
            return []
        new = centred(rewards, std(rewards) + self.eps)
        centre = total / count if visits > 1 else mean(rewards)
        variance = max(squares - count * centre**2, 0.0) / max(count - 1, 1)
        spread = math.sqrt(variance) if variance > 1e-12 else 0.0
        whole = [(r - centre) / (spread + self.eps) if spread else 0.0 for r in rewards]
        pairs = [(((visits - 1) * n + t) / visits, (n + (visits - 1) * t) / visits) for n, t in zip(new, whole)]
        return [min(pair, key=abs) for pair in pairs]

    def state_dict(self) -> dict[str, Any]:
        return {"past": {key: list(value) for key, value in self.past.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.past.clear()
        self.past.update(state["past"])
