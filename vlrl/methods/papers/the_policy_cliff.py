"""The policy cliff: the map from rewards to optimal policies is discontinuous at ties; a metric of how close
a run's rewards are to that.

Paper: The Policy Cliff, arXiv:2507.20150.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vlrl.methods.core.metric import mean
from vlrl.plugins.finding import PaperFinding, RunNumbers, nothing
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Metric
from vlrl.types import Group


@register("the_policy_cliff")
@dataclass(frozen=True, kw_only=True)
class ThePolicyCliff(Metric):
    """Sensitivity of the training signal to the reward weights: each slot's weight is multiplied by 1 +
    `change`, one slot at a time.

    "best" is the share of (group, slot) in which another rollout becomes the best one (ties: the first),
    "sign" the share of rollouts whose centred reward r_i - mean_G r changes its sign. High values mean that
    the reward decides between near-ties: a cliff. Paper: arXiv:2507.20150 (the map from rewards to optimal
    policies is discontinuous at ties); the measure is ours. Edge: fewer than two weighted slots: no numbers.
    Weights are those of the run; 1 before `setup`.
    """

    change: float = 0.1

    def __post_init__(self) -> None:
        if self.change <= -1 or self.change == 0:
            raise ConfigError(f"change: {self.change} must be above -1 and not 0")

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        weights = {slot: reward.weight for slot, reward in self.run.rewards.items()} if self.is_set_up else {}
        best, sign = [], []
        for group in groups:
            slots = sorted({slot for rollout in group for slot in rollout.rewards if weights.get(slot, 1.0)})
            for slot in slots if len(slots) > 1 else ():
                before, after = (
                    _totals(group, weights, {}),
                    _totals(group, weights, {slot: 1.0 + self.change}),
                )
                best.append(float(before.index(max(before)) != after.index(max(after))))
                sign += [
                    float(_sign(x - mean(before)) != _sign(y - mean(after))) for x, y in zip(before, after)
                ]
        return {"best": mean(best), "sign": mean(sign)} if best else {}

    def finding(self, numbers: RunNumbers) -> PaperFinding | None:
        best, sign = numbers.end("best"), numbers.end("sign")
        if best is None or sign is None:
            return nothing("two weighted rewards or more are needed")
        kind = "decide between near-ties, a cliff" if best > 0 else "are away from ties"
        return PaperFinding(
            f"a change of one reward's weight by {self.change:+.0%} makes another rollout the best one in "
            f"{best:.3f} of (group, reward) and turns the sign of {sign:.3f} of the advantages: the rewards "
            f"{kind}. The paper: at ties the optimal policy jumps, however small the change of the reward.",
            best > 0,
        )


def _totals(group: Group, weights: Mapping[str, float], factors: Mapping[str, float]) -> list[float]:
    """The total reward of every rollout, with the weights multiplied by `factors`."""
    return [
        sum(weights.get(s, 1.0) * factors.get(s, 1.0) * value for s, value in rollout.rewards.items())
        for rollout in group
    ]


def _sign(value: float) -> int:
    return (value > 1e-9) - (value < -1e-9)
