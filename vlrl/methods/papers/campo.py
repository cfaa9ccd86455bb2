"""CAMPO (MiroMind-M1): a repetition penalty for truncated rollouts that end in a loop.

`campo` is a reward shaping, applied before the advantages are normalised.

Paper: MiroMind-M1 (CAMPO), arXiv:2507.14683, eq. 5 and 6: f(o), the proportion of the token sequence that
lies inside the loop, is subtracted; released code: truncated rollouts only, and 0.1 where the penalty is
constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group


@register("campo")
@dataclass(frozen=True)
class Campo(RewardShaping):
    """CAMPO's repetition penalty: subtracts the share of a truncated rollout that lies inside its final loop.

        r - penalty (n - s) / n,  or r - penalty without `dynamic`

    n is the number of sampled tokens, s the first position from which on its tokens are one phrase, repeated
    at least `min_repeats` times. Edge: a finished rollout keeps its reward, whatever it repeats; two equal
    tokens at the end are a loop. Units: reward; linear time in n.
    """

    penalty: float = 1.0
    dynamic: bool = True
    min_repeats: int = 2

    def __post_init__(self) -> None:
        if self.min_repeats < 2 or self.penalty < 0:
            raise ValueError(
                f"min_repeats={self.min_repeats} must be at least 2 and penalty={self.penalty} not negative"
            )

    def __call__(self, group: Group) -> list[float]:
        shaped = []
        for rollout in group:
            ids = [token for token, own in zip(rollout.ids, rollout.sampled) if own]
            start = loop_start(ids, self.min_repeats) if rollout.truncated else None
            ratio = 0.0 if start is None else (len(ids) - start) / len(ids)
            shaped.append(
                rollout.reward - self.penalty * (ratio if self.dynamic else float(start is not None))
            )
        return shaped


def loop_start(ids: Sequence[int], min_repeats: int = 2) -> int | None:
    """Start of the longest loop at the end: ids[s:] is one phrase, at least `min_repeats` times in a row.
    None without a loop."""
    starts = []
    for period, matched in enumerate(common_prefixes(ids[::-1])):
        repeats = (matched + period) // period if period else 0
        if repeats >= min_repeats:
            starts.append(len(ids) - repeats * period)
    return min(starts, default=None)


def common_prefixes(ids: Sequence[int]) -> list[int]:
    """z[i]: length of the longest common prefix of ids and ids[i:] (Gusfield's Z algorithm, linear time);
    z[0] is 0."""
    z, left, right = [0] * len(ids), 0, 0
    for i in range(1, len(ids)):
        if i < right:
            z[i] = min(right - i, z[i - left])
        while i + z[i] < len(ids) and ids[z[i]] == ids[i + z[i]]:
            z[i] += 1
        if i + z[i] > right:
            left, right = i, i + z[i]
    return z
