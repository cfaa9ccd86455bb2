"""Group-relative advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vlrl.registry import ConfigError, register
from vlrl.stages import Advantage
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; of nothing: 0. Equal values give exactly that value, so that a group without signal is exactly zero."""
    if not values:
        return 0.0
    return values[0] if min(values) == max(values) else math.fsum(values) / len(values)


def std(values: Sequence[float], unbiased: bool = True) -> float:
    """Standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - unbiased))


def centred(values: Sequence[float], divisor: float) -> list[float]:
    """(v - mean) / divisor; zeros where all values are equal, whatever the divisor."""
    centre = mean(values)
    return [(v - centre) / divisor if v != centre else 0.0 for v in values]


@dataclass(frozen=True)
class GroupRelative(Advantage):
    """What the advantages share that compare the rollouts of a prompt."""

    def check(self, run: Run) -> None:
        if run.strategy.samples and run.group_size < 2:
            raise ConfigError(
                f"group_size: {run.group_size} with advantage {self.name!r} gives no signal, for it compares the rollouts of a prompt; "
                "use 2 or more, or an advantage without a group baseline (reinforce)"
            )


@register("grpo")
@dataclass(frozen=True)
class GRPO(GroupRelative):
    """A_i = (r_i - mean_G r) / (std r + eps).

    `scale`: "group" divides by the group's std, "batch" by the std of all rewards of the step (Lite PPO, arXiv:2508.08221), "none" not at all
    (Dr.GRPO, arXiv:2503.20783).
    Paper: Shao et al. 2024, arXiv:2402.03300, sec. 4.1.2.  It leaves std and eps open: `unbiased` true with eps 1e-6 is verl's, with 1e-4 TRL's.
    Edge: a group of equal rewards, or of one rollout, gives zeros.
    """

    eps: float = 1e-6
    unbiased: bool = True
    scale: Literal["group", "batch", "none"] = "group"

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        pooled = std([r for group in groups for r in group.rewards], self.unbiased)
        result = []
        for group in groups:
            divisor = {"group": std(group.rewards, self.unbiased) + self.eps, "batch": pooled + self.eps, "none": 1.0}[self.scale]
            result.append(centred(group.rewards, divisor))
        return result
