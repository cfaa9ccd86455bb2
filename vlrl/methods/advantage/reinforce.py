"""The plain reward, or the reward above a running mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.methods.advantage.grpo import mean
from vlrl.registry import register
from vlrl.stages import Advantage
from vlrl.types import Group


@register("reinforce")
@dataclass(frozen=True)
class Reinforce(Advantage):
    """A_i = r_i - b, where b is the running mean of the steps before:  b <- decay * b + (1 - decay) * mean r.

    `decay` 0 keeps no baseline (A = r); the first step has b = its own mean, for want of a better one.
    Paper: Williams 1992, doi:10.1007/BF00992696, sec. 4; for language models arXiv:2402.14740, sec. 2.
    """

    decay: float = 0.9
    state: dict[str, float] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay={self.decay} must be in [0, 1); 0 means no baseline")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        if not self.decay:
            return [list(group.rewards) for group in groups]
        now = mean([r for group in groups for r in group.rewards])
        baseline = self.state.get("baseline", now)
        self.state["baseline"] = self.decay * baseline + (1 - self.decay) * now
        return [[r - baseline for r in group.rewards] for group in groups]

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.clear()
        self.state.update(state)
