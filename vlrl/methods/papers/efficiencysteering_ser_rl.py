"""Self-Rewarded Efficiency RL: correct rollouts are penalised for what they are longer than the group's
shortest correct one.

`efficiencysteering_ser_rl` is a reward shaping. The paper's efficiency steering, which trains nothing, is
left out.

Paper: Zhao et al. 2025 (Self-Rewarded Efficiency RL), arXiv:2506.15647: brevity among correct answers,
measured by the model's own shortest one, balanced against accuracy. Deviates: the abstract gives no formula;
this one is ours, and p is its balance: a prompt that is rarely solved has a small length penalty.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group


@register("efficiencysteering_ser_rl")
@dataclass(frozen=True)
class EfficiencysteeringSerRl(RewardShaping):
    """Self-rewarded efficiency: a length penalty relative to the group's shortest correct rollout.

        r - weight p min(1, (n - m) / m) for a correct rollout of n sampled tokens

    m is the length of the group's shortest correct rollout, p the share of correct ones.
    Edge: other rollouts, and groups with at most one correct one, keep their reward. Units: reward.
    """

    weight: float = 0.5

    def __call__(self, group: Group) -> list[float]:
        shortest = min((rollout.sampled_tokens for rollout in group if rollout.correct), default=1)
        factor = self.weight * sum(rollout.correct for rollout in group) / len(group)
        return [
            r.reward - factor * min(1.0, (r.sampled_tokens - shortest) / shortest) if r.correct else r.reward
            for r in group
        ]
