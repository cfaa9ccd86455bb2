"""Combining rewards: sums, products, gates. The raw parts are kept in `rollout.info["parts"]`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vlrl.registry import register
from vlrl.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.nested import build_parts, note, number


@dataclass(frozen=True, kw_only=True)
class Combined(Reward):
    """What combinations share: a named map of rewards, in order of importance."""

    parts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_parts", build_parts(self.parts, f"{self.name}.parts"))

    @property
    def built(self) -> dict[str, Reward]:
        return self._parts  # type: ignore[attr-defined]

    def values(self, rollout: Rollout) -> dict[str, float]:
        """Every part's score of a rollout, noted."""
        found = {slot: number(reward, rollout) for slot, reward in self.built.items()}
        for slot, value in found.items():
            note(rollout, slot, value)
        return found


@register("weighted_sum")
@dataclass(frozen=True, kw_only=True)
class WeightedSum(Combined):
    """r = sum_k w_k r_k (/ sum_k |w_k| if `average`); w_k is each part's own `weight`.

    Paper: DeepSeek-R1, arXiv:2501.12948, sec. 2.2.2 (accuracy plus format). Edge: zero weights with `average` raise ValueError.
    """

    average: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average and not sum(abs(part.weight) for part in self.built.values()):
            raise ValueError("weighted_sum: all weights are zero, so there is no average")

    def __call__(self, rollout: Rollout) -> float:
        found = self.values(rollout)
        total = sum(self.built[slot].weight * value for slot, value in found.items())
        return total / sum(abs(part.weight) for part in self.built.values()) if self.average else total


@register("product")
@dataclass(frozen=True, kw_only=True)
class Product(Combined):
    """r = prod_k r_k, parts below 0 taken as 0 (two wrongs make no right).

    Paper: VerIF, arXiv:2506.09942 (hard times soft score). Edge: one part at 0 makes it 0.
    """

    def __call__(self, rollout: Rollout) -> float:
        return math.prod(max(0.0, value) for value in self.values(rollout).values())


@register("gated")
@dataclass(frozen=True, kw_only=True)
class Gated(Combined):
    """r = r_last if every part before it reaches `threshold`, else `otherwise`: accuracy only if the format holds.

    Paper: Med-RLVR, arXiv:2502.19655 (a penalty for broken format); MT-R1-Zero, arXiv:2504.10160. Parts are asked in order; those behind a
    closed gate are not asked at all, and not noted.
    """

    threshold: float = 1.0
    otherwise: float = 0.0

    def __call__(self, rollout: Rollout) -> float:
        *gates, (last, reward) = self.built.items()
        for slot, gate in gates:
            value = number(gate, rollout)
            note(rollout, slot, value)
            if value < self.threshold:
                return self.otherwise
        value = number(reward, rollout)
        note(rollout, last, value)
        return value
