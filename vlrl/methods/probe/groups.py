"""What the rewards of a group can still teach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.types import Group

from ._judged import Judged, mean


@register("groups")
@dataclass(frozen=True, kw_only=True)
class Groups(Judged):
    """Shares of groups whose rewards are all equal ("flat"), all right, all wrong, and mixed; the mean std of rewards; anti-concentration.

    "std" is the population std of the total rewards of a group, mean over groups. "anticoncentration" is the mean over groups of
    P(r >= mean + `margin` * std): how much of the policy's own mass lies clearly above its mean, which is what RL can move towards.
    Paper: groups without variance: DAPO, arXiv:2503.14476, sec. 3.2; anti-concentration: arXiv:2502.12118 (the empirical form is ours).
    Edge: in a flat group nothing lies above the mean, so it adds 0. Units: shares, and reward for std.
    """

    margin: float = 1.0

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        full = [group.rewards for group in groups if len(group)]
        if not full:
            return {}
        stds = [_std(rewards) for rewards in full]
        out = {
            "flat": mean([float(std == 0) for std in stds]),
            "std": mean(stds),
            "anticoncentration": mean([_above(rewards, std, self.margin) for rewards, std in zip(full, stds)]),
        }
        shares = [mean([float(right) for _, right in members]) for members in self.judged(groups)]
        if shares:
            out |= {"all_right": mean([float(s == 1) for s in shares]), "all_wrong": mean([float(s == 0) for s in shares])}
            out["mixed"] = mean([float(0 < s < 1) for s in shares])
        return out


def _std(rewards: Sequence[float]) -> float:
    if len(set(rewards)) == 1:
        return 0.0  # exactly, whatever rounding would make of it
    centre = mean(rewards)
    return math.sqrt(mean([(reward - centre) ** 2 for reward in rewards]))


def _above(rewards: Sequence[float], std: float, margin: float) -> float:
    bar = mean(rewards) + margin * std
    return mean([float(reward >= bar - 1e-12) for reward in rewards]) if std else 0.0
