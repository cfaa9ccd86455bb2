"""RLSP: reinforcement learning via self-play with separate rewards for a correct outcome and for exploration (long reasoning).

`rlsp` is a reward shaping.

Paper: Ye et al. 2025 (RLSP), arXiv:2502.06773, sec. 3: R = alpha R_correct + (1 - alpha) R_explore, in its simplest form more intermediate steps.
Deviates: the bonus's form, its cap and alpha are ours (tokens stand for steps).
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.context import RunContext
from vlrl.methods.core.sampling import completion_limit
from vlrl.registry import register
from vlrl.stages import RewardShaping, State, transient
from vlrl.types import Group


@dataclass
class RlspState(State):
    """The longest completion in tokens, from the config or the run's sampling."""

    limit: int = transient(0)


@register("rlsp")
@dataclass(frozen=True)
class Rlsp(RewardShaping):
    """RLSP's exploration reward: alpha r + (1 - alpha) min(n / (cap * limit), 1), without the second part for a truncated rollout.

    n is the number of sampled tokens, `limit` the longest completion (0: the longest that may be sampled). alpha above 1/2 makes a correct
    answer worth more than any exploration.
    """

    alpha: float = 0.8
    cap: float = 0.5
    limit: int = 0

    def __post_init__(self) -> None:
        if not 0.5 < self.alpha <= 1 or not 0 < self.cap <= 1:
            raise ValueError(
                f"alpha={self.alpha} must be in (0.5, 1], so that a correct answer is worth more than exploration, and cap={self.cap} in (0, 1]"
            )

    def init_state(self) -> RlspState:
        return RlspState(limit=self.limit)

    def setup(self, run: RunContext) -> None:
        super().setup(run)
        self.state.limit = completion_limit(run, self.limit, "reward_shaping: 'rlsp' limit")

    def __call__(self, group: Group) -> list[float]:
        full_bonus_length = self.cap * self.state.limit
        return [self.alpha * r.reward + (1 - self.alpha) * (0.0 if r.truncated else min(r.sampled_tokens / full_bonus_length, 1.0)) for r in group]
