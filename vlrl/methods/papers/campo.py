"""A penalty for rollouts that end in a loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import RewardShaping
from vlrl.types import Group


def common_prefixes(ids: Sequence[int]) -> list[int]:
    """z[i]: the length of the longest common prefix of ids and ids[i:] (Gusfield's Z algorithm, linear time); z[0] is 0."""
    z, left, right = [0] * len(ids), 0, 0
    for i in range(1, len(ids)):
        if i < right:
            z[i] = min(right - i, z[i - left])
        while i + z[i] < len(ids) and ids[z[i]] == ids[i + z[i]]:
            z[i] += 1
        if i + z[i] > right:
            left, right = i, i + z[i]
    return z


def loop_start(ids: Sequence[int], least: int = 2) -> int | None:
    """Where the longest loop at the end begins: ids[s:] is one phrase, `least` times or more back to back. None if there is none."""
    starts = []
    for period, matched in enumerate(common_prefixes(ids[::-1])):
        repeats = (matched + period) // period if period else 0
        if repeats >= least:
            starts.append(len(ids) - repeats * period)
    return min(starts, default=None)


@register("campo")
@dataclass(frozen=True)
class Campo(RewardShaping):
    """A truncated rollout of n tokens whose tokens from s on are one phrase over and over: r - penalty (n - s) / n; without `dynamic`: r - penalty.

    s is the earliest such place; a phrase counts from `least` times on. Before the group is normalised.
    Paper: MiroMind-M1 (CAMPO), arXiv:2507.14683, eq. 5 and 6: f(o), the proportion of the token sequence that lies inside the loop, is subtracted;
    released code: truncated rollouts only, and 0.1 where the penalty is constant. Edge: a finished rollout is left alone, whatever it repeats; two
    equal tokens at the end are a loop. Units: reward; linear time in n.
    """

    penalty: float = 1.0
    dynamic: bool = True
    least: int = 2

    def __post_init__(self) -> None:
        if self.least < 2 or self.penalty < 0:
            raise ValueError(f"least, penalty: must be at least 2 and 0, got {self.least} and {self.penalty}")

    def __call__(self, group: Group) -> list[float]:
        shaped = []
        for rollout in group:
            start = loop_start(rollout.ids, self.least) if rollout.truncated else None
            ratio = 0.0 if start is None else (len(rollout) - start) / len(rollout)
            shaped.append(rollout.reward - self.penalty * (ratio if self.dynamic else float(start is not None)))
        return shaped
