"""Interleaved reasoning: credit for answers on the way counts only while the policy gets better.

Paper: Xie et al. 2025 (Interleaved Reasoning), arXiv:2505.19640, sec. 3.2.2. The rewards are `interleaved`
and `interleaved_steps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl import functional
from vlrl.methods.core.advantage import GroupRelative, by_group, flat_rewards
from vlrl.plugins.capabilities import RewardSlot
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import State
from vlrl.types import Group


@dataclass
class InterleavedReasoningState(State):
    """The accuracy of the last batch, None before the first; how many batches gave credit, of how many."""

    accuracy: float | None = None
    credited: int = 0
    batches: int = 0


@register("interleaved_reasoning")
@dataclass(frozen=True)
class InterleavedReasoning(GroupRelative):
    """GRPO's advantage on rewards to which the credit of slot `slot` is added where the batch is about as
    accurate as the one before, or more.

        R_i = r_i + 1[Acc(B) > Acc(B - 1) - tolerance] credit_i        A_i = (R_i - mean_G R) / (std R + eps)

    Acc is the share of correct rollouts of the step, of all ranks; credit_i is the raw score of reward
    `slot`, which has weight 0. Paper: Xie et al. 2025, arXiv:2505.19640, eq. 3.3 to 3.5 and algorithm 1
    (tolerance 0.05, app. B.1); GRPO is one of its three algorithms (tab. 3). Edge: the first batch has
    nothing to fall behind, so it gives credit. State: the last accuracy.
    """

    state_class = InterleavedReasoningState
    slot: RewardSlot = "steps"
    tolerance: float = 0.05
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if not self.slot or self.tolerance < 0:
            raise ConfigError(
                f"advantage: slot={self.slot!r} must name a reward slot and tolerance={self.tolerance} "
                "must be 0 or more"
            )

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        reward_B, group_B = flat_rewards(groups)
        if self.progressing(groups):
            reward_B = reward_B + reward_B.new_tensor(
                [rollout.rewards.get(self.slot, 0.0) for group in groups for rollout in group]
            )
        return by_group(
            functional.group_advantages(reward_B, group_B, baseline="mean", scale="std", eps=self.eps), groups
        )

    def progressing(self, groups: Sequence[Group]) -> bool:
        """Whether the batch gives credit; remembers its accuracy."""
        correct = [float(rollout.correct) for group in groups for rollout in group]
        if not correct:
            return False
        now, before = sum(correct) / len(correct), self.state.accuracy
        rises = before is None or now > before - self.tolerance
        self.state.accuracy, self.state.batches, self.state.credited = (
            now,
            self.state.batches + 1,
            self.state.credited + rises,
        )
        return rises

    def metrics(self) -> dict[str, float]:
        """The share of batches so far that gave credit."""
        return (
            {"interleaved/credited": self.state.credited / self.state.batches} if self.state.batches else {}
        )
