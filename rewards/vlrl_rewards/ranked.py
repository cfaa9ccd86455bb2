"""Rewards combined by rank of importance, by scale, or by calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.types import Group, Rollout
from vlrl_rewards.combine import Combined
from vlrl_rewards.nested import note, numbers


@register("lexicographic")
@dataclass(frozen=True, kw_only=True)
class Lexicographic(Combined):
    """r = place of the rollout in its group (0 worst, 1 best, ties share the mean) when parts are compared in order, differences within `margin`
    being ties.

    Paper: HERON, arXiv:2309.02632 (decision tree over ranked signals; pairwise wins instead of a trained reward model). r_i = share of siblings
    beaten, a tie counting one half. Edge: alone in its group a rollout gets 0.5.
    """

    margin: float = 0.0

    def __call__(self, rollout: Rollout) -> float:
        self.values(rollout)
        return 0.5

    def score(self, group: Group) -> list[float]:
        columns = [numbers(reward, group) for reward in self.built.values()]
        for slot, column in zip(self.built, columns, strict=True):
            for rollout, value in zip(group, column, strict=True):
                note(rollout, slot, value)
        rows = list(zip(*columns, strict=True))
        others = max(1, len(rows) - 1)
        if len(rows) < 2:
            return [0.5] * len(rows)
        return [sum(self._wins(a, b) for j, b in enumerate(rows) if i != j) / others for i, a in enumerate(rows)]

    def _wins(self, a: tuple[float, ...], b: tuple[float, ...]) -> float:
        for x, y in zip(a, b, strict=True):
            if abs(x - y) > self.margin:
                return float(x > y)
        return 0.5


@register("normalised_sum")
@dataclass(frozen=True, kw_only=True)
class NormalisedSum(Combined):
    """r_i = sum_k w_k (r_ik - mean_k) / (std_k + eps) over the group: every reward has the same say, whatever its scale.

    Paper: GDPO, arXiv:2601.05242 (normalise each reward in the group, then sum). Population standard deviation. Deviations: the batch-wide
    normalisation that follows belongs to the advantage. Edge: a part that is equal for all siblings adds 0; so does any part for a lone rollout.
    """

    eps: float = 1e-4

    def __call__(self, rollout: Rollout) -> float:
        self.values(rollout)
        return 0.0

    def score(self, group: Group) -> list[float]:
        totals = [0.0] * len(group)
        for slot, reward in self.built.items():
            column = numbers(reward, group)
            mean = math.fsum(column) / len(column)
            spread = math.sqrt(math.fsum((value - mean) ** 2 for value in column) / len(column))
            for i, (rollout, value) in enumerate(zip(group, column, strict=True)):
                note(rollout, slot, value)
                totals[i] += reward.weight * (value - mean) / (spread + self.eps) if spread > 0 else 0.0
        return totals


@register("calibrated")
@dataclass(frozen=True, kw_only=True)
class Calibrated(Combined):
    """r = c - (q - c)^2, with c = 1 if the one part reaches `threshold` and q the confidence in [0, 1] stated in `<confidence>` tags.

    Paper: RLCR, arXiv:2507.16806 (correctness plus Brier score). Edge: no confidence, several, or one outside [0, 1]: the worst, -1.
    """

    threshold: float = 0.999

    def __call__(self, rollout: Rollout) -> float:
        from vlrl_rewards.parsing import strip_thinking
        from vlrl_rewards.structure import probability

        correct = float(min(self.values(rollout).values()) >= self.threshold)
        blocks = strip_thinking(rollout.text).split("<confidence>")
        stated = probability(blocks[1].partition("</confidence>")[0]) if len(blocks) == 2 and "</confidence>" in blocks[1] else None
        return -1.0 if stated is None else correct - (stated - correct) ** 2
