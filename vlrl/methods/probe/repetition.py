"""Text that goes round in circles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import ConfigError, register
from vlrl.stages import Probe
from vlrl.types import Group

from ._judged import mean


@register("repetition")
@dataclass(frozen=True, kw_only=True)
class Repetition(Probe):
    """The share of repeated n-grams of tokens, 1 - (different n-grams) / (n-grams), mean over rollouts and its maximum.

    "looping" is the share of rollouts above `limit`. Paper: distinct-n, Li et al. 2016, arXiv:1510.03055 (here by rollout, and its complement).
    Edge: rollouts of fewer than n tokens are left out.
    """

    n: int = 4
    limit: float = 0.5

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"n: {self.n} must be 1 or more")

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        shares = [repeated(rollout.ids, self.n) for group in groups for rollout in group if len(rollout) >= self.n]
        if not shares:
            return {}
        return {"share": mean(shares), "max": max(shares), "looping": mean([float(share > self.limit) for share in shares])}


def repeated(ids: Sequence[int], n: int) -> float:
    """1 - (different n-grams) / (n-grams) of at least n tokens."""
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams)
