"""Being right and searching, paid apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.methods.common.limits import completion_limit
from vlrl.registry import register
from vlrl.stages import RewardShaping
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("rlsp")
@dataclass(frozen=True)
class Rlsp(RewardShaping):
    """alpha r + (1 - alpha) min(n / (cap * limit), 1):  n the rollout's tokens, limit the longest completion; nothing for one that is cut off.

    Paper: Ye et al. 2025 (RLSP), arXiv:2502.06773, sec. 3: R = alpha R_correct + (1 - alpha) R_explore, in its simplest form more intermediate steps.
    Deviates: the bonus's form, its cap and alpha are ours (tokens stand for steps). alpha above 1/2 keeps a right answer worth more than any search.
    `limit` 0 takes the longest completion that may be sampled.
    """

    alpha: float = 0.8
    cap: float = 0.5
    limit: int = 0
    resolved: int = field(init=False, default=0, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0.5 < self.alpha <= 1 or not 0 < self.cap <= 1:
            raise ValueError(f"alpha={self.alpha} must be in (0.5, 1], for a right answer is worth more than search, and cap={self.cap} in (0, 1]")

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "resolved", completion_limit(run, self.limit, "shape.exploration_bonus.limit"))

    def __call__(self, group: Group) -> list[float]:
        most = self.cap * (self.limit or self.resolved)
        return [self.alpha * r.reward + (1 - self.alpha) * (0.0 if r.truncated else min(len(r) / most, 1.0)) for r in group]
