"""STARC: a distance between reward functions, here between the reward slots of a run.

`starc` is a metric. Paper: Skalse et al. 2023 (STARC), arXiv:2309.15257.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.core.metric import mean
from vlrl.plugins.finding import PaperFinding, RunNumbers, nothing
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Metric
from vlrl.types import Group

UNRELATED = math.sqrt(0.5)
EQUAL = 0.01  # below it two rewards count as equal, and so near to UNRELATED as unrelated (ours)


@register("starc")
@dataclass(frozen=True, kw_only=True)
class Starc(Metric):
    """STARC distance of each pair of reward slots: d(a, b) = || c(a)/|c(a)| - c(b)/|c(b)| ||_2 / 2, where c
    centres a slot's scores per group.

    0: equal up to a shift per prompt and a positive scale, so the same GRPO update direction; 1/sqrt 2:
    unrelated; 1: opposed. Paper: Skalse et al. 2023 (STARC), arXiv:2309.15257, with value-adjusted levelling
    as the canonical form: c(R)(s, a) = R(s, a) - V(s) + gamma E V(s'), the last term absent after the only
    step, V(s) estimated by the group's mean. The norm is over the sampled rollouts; the factor 1/2 is ours.
    Edge: a slot that is constant in every group is left out. Only rollouts that both slots scored count.
    """

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        slots = sorted({slot for group in groups for rollout in group for slot in rollout.rewards})
        out = {}
        for a, b in itertools.combinations(slots, 2):
            distance = _distance(*_centred(groups, a, b))
            if distance is not None:
                out[f"{a}|{b}"] = distance
        return out

    def finding(self, numbers: RunNumbers) -> PaperFinding | None:
        pairs = {name: value for name in numbers.names() if (value := numbers.end(name)) is not None}
        if not pairs:
            return nothing("no two reward slots vary on the same rollouts")
        told = ", ".join(f"{name} {value:.3f}" for name, value in pairs.items())
        name, far = max(pairs.items(), key=lambda pair: pair[1])
        kind = (
            "order policies alike"
            if far < EQUAL
            else "lean the same way"
            if far < UNRELATED - EQUAL
            else "are unrelated"
            if far <= UNRELATED + EQUAL
            else "pull against each other"
        )
        return PaperFinding(
            f"STARC distances at the end: {told} (0: the same update, {UNRELATED:.3f}: unrelated, 1: "
            f"opposed). The furthest pair, {name}, rewards that {kind}. The paper: the distance bounds what "
            "optimising one reward costs under the other, from below and above.",
            far >= EQUAL,
        )


def _centred(groups: Sequence[Group], *slots: str) -> list[list[float]]:
    """Scores of rollouts that have all slots, minus their mean over the group, one list per slot."""
    out: list[list[float]] = [[] for _ in slots]
    for group in groups:
        members = [rollout for rollout in group if all(slot in rollout.rewards for slot in slots)]
        for values, slot in zip(out, slots):
            scores = [rollout.rewards[slot] for rollout in members]
            values.extend(score - mean(scores) for score in scores)
    return out


def _distance(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Half the distance of the normalised vectors; None where one of them is 0."""
    x_norm, y_norm = math.sqrt(sum(x * x for x in xs)), math.sqrt(sum(y * y for y in ys))
    if x_norm < 1e-12 or y_norm < 1e-12:
        return None
    return math.sqrt(sum((x / x_norm - y / y_norm) ** 2 for x, y in zip(xs, ys))) / 2
