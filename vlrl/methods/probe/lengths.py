"""Lengths of right and wrong answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.types import Group

from ._judged import Judged, mean


@register("lengths")
@dataclass(frozen=True, kw_only=True)
class Lengths(Judged):
    """Mean tokens of right and of wrong rollouts, the share that was cut off among each, and the correlation of length with being right.

    "correlation" is Pearson's r over all judged rollouts: sum (l - l_mean)(y - y_mean) / sqrt(sum (l - l_mean)^2 sum (y - y_mean)^2).
    Paper: length and correctness under GRPO: Dr.GRPO, arXiv:2503.20783, sec. 3.1 (wrong answers grow longer).
    Edge: a number without rollouts (no wrong ones, say) is left out, as is the correlation where nothing varies. Units: tokens, shares.
    """

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        pairs = [pair for members in self.judged(groups) for pair in members]
        out = {}
        for name, wanted in (("right", True), ("wrong", False)):
            chosen = [rollout for rollout, right in pairs if right is wanted]
            if chosen:
                out[name] = mean([len(rollout) for rollout in chosen])
                out[f"cut/{name}"] = mean([float(rollout.truncated) for rollout in chosen])
        r = correlation([float(len(rollout)) for rollout, _ in pairs], [float(right) for _, right in pairs])
        return out if r is None else {**out, "correlation": r}


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson's r; None where one of the two does not vary."""
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return None
    x0, y0 = mean(xs), mean(ys)
    along = sum((x - x0) * (y - y0) for x, y in zip(xs, ys))
    return along / math.sqrt(sum((x - x0) ** 2 for x in xs) * sum((y - y0) ** 2 for y in ys))
