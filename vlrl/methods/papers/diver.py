"""A bonus for right answers that are unlike the others."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.methods.papers.t_grpo import ReadsAccuracy
from vlrl.registry import ConfigError, register
from vlrl.stages import RewardShaping
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("diver")
@dataclass(frozen=True)
class Diver(ReadsAccuracy, RewardShaping):
    """A right rollout: r + lambda_t min(cap, d), d its raw score in the slot `by`, lambda_t = weight (1 + cos(pi t / steps)) / 2, 0 from `steps` on.

    `by` is a reward that measures diversity (`group_diversity`), best with weight 0; `cap` keeps answers from being odd for the bonus' sake.
    Paper: Hu et al. 2025 (DIVER), arXiv:2509.26209; released code: for right rollouts only, caps, some 100 steps with cosine decay. Deviates: the
    potential's telescoping terms are left out: for a reward at the end of the rollout they are this bonus. Edge: wrong rollouts get nothing.
    """

    by: str
    weight: float = 0.1
    cap: float = 0.42
    steps: int = 100
    least: float = 0.5
    slot: str = ""
    seen: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def check(self, run: RunContext) -> None:
        self.check_slot(run)
        if self.by not in run.rewards:
            raise ConfigError(f"shape.diver.by: no reward slot {self.by!r}; known: {', '.join(run.rewards)}")

    def setup(self, run: RunContext) -> None:
        super().setup(run)
        object.__setattr__(self, "run", run)

    def __call__(self, group: Group) -> list[float]:
        step = self.run.phase_step if self.run is not None else 0
        weight = self.weight * (1 + math.cos(math.pi * min(1.0, step / self.steps))) / 2 if self.steps else self.weight
        return [r.reward + weight * min(self.cap, r.rewards.get(self.by, 0.0)) * (self.accuracy(r) > self.least) for r in group]
