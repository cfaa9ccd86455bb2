"""What the probes share: which rollouts are right, and what their answer is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.stages import Metric
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


@dataclass(frozen=True, kw_only=True)
class Judged(Metric):
    """A probe that needs to know what is right: a rollout whose raw score in `slot` is at least `threshold`.

    Without `slot`, the first weighted reward slot of the run that scored the rollout. Rollouts that it did not score are left out.
    """

    slot: str = ""
    threshold: float = 1.0
    order: list[str] = field(init=False, default_factory=list, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        self.order[:] = [slot for slot, reward in run.rewards.items() if reward.weight > 0]

    def score(self, rollout: Rollout) -> float | None:
        """The raw score that decides, or None."""
        slots = [self.slot] if self.slot else [*self.order, *rollout.rewards]
        return next((rollout.rewards[slot] for slot in slots if slot in rollout.rewards), None)

    def right(self, rollout: Rollout) -> bool | None:
        """Whether a rollout is right; None if it was not judged."""
        score = self.score(rollout)
        return None if score is None else score >= self.threshold - 1e-9

    def judged(self, groups: Sequence[Group]) -> list[list[tuple[Rollout, bool]]]:
        """(rollout, right) of every group that has any; expert and replayed rollouts are not the policy's and do not count."""
        out = []
        for group in groups:
            pairs = [(rollout, self.right(rollout)) for rollout in group if rollout.source == "policy"]
            known = [(rollout, bool(right)) for rollout, right in pairs if right is not None]
            if known:
                out.append(known)
        return out


def answer_of(text: str, pattern: str) -> str:
    """The last match of `pattern` (its first group), else the last line that is not blank; case and spaces do not count."""
    found = re.findall(pattern, text, re.DOTALL)
    lines = [line for line in text.splitlines() if line.strip()]
    answer = found[-1] if found else (lines[-1] if lines else "")
    return " ".join(answer.split()).lower()


def mean(values: Sequence[float]) -> float:
    """The mean; of nothing it is an error, so that no probe invents a number."""
    return sum(values) / len(values)
