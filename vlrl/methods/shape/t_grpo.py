"""A bonus for answers that need the order of frames; and Video-R1's bonus for answers of middle length."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.registry import ConfigError, register
from vlrl.stages import Shape
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from vlrl.run import Run


class ReadsAccuracy:
    """Mixed into shapes with the fields `slot`, the reward that counts as accuracy (empty: the first with a weight), and `seen`."""

    slot: str
    seen: dict[str, str]

    def check_slot(self, run: Run) -> None:
        """Raise ConfigError for a slot that the run has no reward for."""
        if self.slot and self.slot not in run.rewards:
            raise ConfigError(f"shape.{self.name}.slot: no reward slot {self.slot!r}; known: {', '.join(run.rewards)}")  # type: ignore[attr-defined]

    def setup(self, run: Run) -> None:
        self.seen["slot"] = self.slot or next(slot for slot, reward in run.rewards.items() if reward.weight > 0)

    def accuracy(self, rollout: Rollout) -> float:
        """The raw accuracy of a rollout."""
        return rollout.rewards[self.slot or self.seen["slot"]]


@register("t_grpo")
@dataclass(frozen=True)
class TemporalBonus(ReadsAccuracy, Shape):
    """If p >= mu * p~, r_i + alpha for each ordered rollout with accuracy above `least`; p and p~ are the mean accuracies of ordered and shuffled
    rollouts.

    `slot` is the accuracy (empty: the first reward with a weight). Groups without shuffled rollouts (strategy `t_grpo`) are left alone. Probe
    `t_grpo` reads p, p~ and the condition from `group.info`.
    Paper: Feng et al. 2025 (Video-R1), arXiv:2503.21776, eq. 1-2; released code: mu 0.8, alpha 0.3, least 0.1.
    Edge: both accuracies 0: the condition holds, and no rollout is right enough for the bonus.
    """

    alpha: float = 0.3
    mu: float = 0.8
    least: float = 0.1
    slot: str = ""
    seen: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)

    def check(self, run: Run) -> None:
        if run.strategy.name != "t_grpo":
            raise ConfigError(
                f"shape t_grpo needs the shuffled rollouts that strategy {run.strategy.name!r} does not make; use strategy: {{name: t_grpo}}"
            )
        self.check_slot(run)

    def __call__(self, group: Group) -> list[float]:
        ordered = [self.accuracy(rollout) for rollout in group if rollout.source != "shuffled"]
        shuffled = [self.accuracy(rollout) for rollout in group if rollout.source == "shuffled"]
        if not shuffled or not ordered:
            return group.rewards
        p, p_shuffled = sum(ordered) / len(ordered), sum(shuffled) / len(shuffled)
        earned = p >= self.mu * p_shuffled
        group.info["t_grpo"] = {"ordered": p, "shuffled": p_shuffled, "earned": float(earned)}
        return [r.reward + self.alpha * (earned and r.source != "shuffled" and self.accuracy(r) > self.least) for r in group]


@register("middle_length")
@dataclass(frozen=True)
class MiddleLength(ReadsAccuracy, Shape):
    """r_i + bonus for right rollouts of `low` to `high` tokens, where at least two rollouts of the group are right (accuracy above `least`).

    Paper: Feng et al. 2025 (Video-R1), arXiv:2503.21776, eq. 3; released code: 0.2, 320 to 512 tokens.  Shuffled rollouts are left out.
    """

    bonus: float = 0.2
    low: int = 320
    high: int = 512
    least: float = 0.1
    slot: str = ""
    seen: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __call__(self, group: Group) -> list[float]:
        right = [rollout.source != "shuffled" and self.accuracy(rollout) > self.least for rollout in group]
        if sum(right) < 2:
            return group.rewards
        return [r.reward + self.bonus * (ok and self.low <= len(r) <= self.high) for r, ok in zip(group, right)]
