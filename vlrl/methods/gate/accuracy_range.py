"""Prompts that are neither too easy nor too hard."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.registry import register
from vlrl.stages import Gate
from vlrl.types import Group, Verdict

if TYPE_CHECKING:
    from vlrl.run import Run


@register("accuracy_range")
@dataclass(frozen=True)
class AccuracyRange(Gate):
    """Keeps a group whose mean accuracy is in [low, high].

    `slot` is the accuracy (empty: the first reward with a weight).
    Paper: Meng et al. 2025 (MM-Eureka), arXiv:2503.07365, sec. 3.2: online filter; released code 0.1 and 0.9.  Edge: an empty group is dropped.
    """

    low: float = 0.1
    high: float = 0.9
    slot: str = ""
    seen: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}: no group would be kept")

    def setup(self, run: Run) -> None:
        self.seen["slot"] = self.slot or next(slot for slot, reward in run.rewards.items() if reward.weight > 0)

    def __call__(self, group: Group) -> Verdict:
        if not len(group):
            return Verdict(False, "empty group")
        scores = group.raw(self.slot or self.seen["slot"]) if self.slot or self.seen else group.rewards
        mean = sum(scores) / len(scores)
        return Verdict(True) if self.low <= mean <= self.high else Verdict(False, "too easy" if mean > self.high else "too hard")
