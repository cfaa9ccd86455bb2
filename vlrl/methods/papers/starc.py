"""Whether several rewards ask for the same thing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.methods.common.judged_metric import mean
from vlrl.registry import ConfigError, register
from vlrl.stages import Metric
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("starc")
@dataclass(frozen=True, kw_only=True)
class Starc(Metric):
    """d(a, b) = || c(a)/|c(a)| - c(b)/|c(b)| ||_2 / 2 for each pair of reward slots, where c centres a slot's scores within each group.

    0: the same up to shift per prompt and positive scale, so the same GRPO update direction; 1/sqrt 2: unrelated; 1: opposed.
    Paper: Skalse et al. 2023 (STARC), arXiv:2309.15257 (canonicalise, normalise, compare); for one-step rollouts the canonical form, which removes
    what no policy can change, is the centring by prompt (ours), and the norm is over the sampled rollouts. Edge: a slot that is constant in
    every group has no direction: its pairs are left out. Only rollouts that both slots scored count.
    """

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        slots = sorted({slot for group in groups for rollout in group for slot in rollout.rewards})
        out = {}
        for a, b in itertools.combinations(slots, 2):
            distance = _distance(*_centred(groups, a, b))
            if distance is not None:
                out[f"{a}|{b}"] = distance
        return out


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
    x_norm, y_norm = math.sqrt(sum(x * x for x in xs)), math.sqrt(sum(y * y for y in ys))
    if x_norm < 1e-12 or y_norm < 1e-12:
        return None
    return math.sqrt(sum((x / x_norm - y / y_norm) ** 2 for x, y in zip(xs, ys))) / 2


@register("starc.policy_cliff")
@dataclass(frozen=True, kw_only=True)
class StarcPolicyCliff(Metric):
    """How much a small change of the reward weights would change what is learned: each slot's weight times 1 + `change`, one at a time.

    "best" is the share of (group, slot) in which another rollout becomes the best one (ties: the first), "sign" the share of rollouts whose
    centred reward r_i - mean_G r changes its sign. High values mean that the reward decides between near-ties: a cliff.
    Paper: arXiv:2507.20150 (the map from rewards to optimal policies is discontinuous at ties); the measure is ours. Edge: fewer than two weighted
    slots give nothing to trade, no number. Weights are the run's; in tests 1 where there is no run.
    """

    change: float = 0.1
    weights: dict[str, float] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.change <= -1 or self.change == 0:
            raise ConfigError(f"change: {self.change} must be above -1 and not 0")

    def setup(self, run: RunContext) -> None:
        self.weights.update({slot: reward.weight for slot, reward in run.rewards.items()})

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        best, sign = [], []
        for group in groups:
            slots = sorted({slot for rollout in group for slot in rollout.rewards if self.weights.get(slot, 1.0)})
            for slot in slots if len(slots) > 1 else ():
                before, after = self._totals(group, ""), self._totals(group, slot)
                best.append(float(before.index(max(before)) != after.index(max(after))))
                sign += [float(_sign(x - mean(before)) != _sign(y - mean(after))) for x, y in zip(before, after)]
        return {"best": mean(best), "sign": mean(sign)} if best else {}

    def _totals(self, group: Group, raised: str) -> list[float]:
        factor = {raised: 1.0 + self.change}
        return [sum(self.weights.get(s, 1.0) * factor.get(s, 1.0) * value for s, value in rollout.rewards.items()) for rollout in group]


def _sign(value: float) -> int:
    return (value > 1e-9) - (value < -1e-9)
