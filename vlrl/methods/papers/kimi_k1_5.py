"""Kimi k1.5: a policy loss from online mirror descent, and a length reward that prefers shorter correct rollouts.

Paper: Kimi Team 2025 (k1.5), arXiv:2501.12599. Curriculum and prioritised sampling are prompt samplers of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlrl.context import RunContext
from vlrl.functional import kimi_length_reward, mirror_descent_loss
from vlrl.methods.common.schedule import check_begins, steps_of
from vlrl.methods.core.policy_loss import SequencePolicyLoss
from vlrl.methods.core.reward_shaping import check_single_length_penalty
from vlrl.registry import register
from vlrl.stages import RewardShaping
from vlrl.types import Group, LossInputs, PerToken


@register("kimi_k1_5.length_reward")
@dataclass(frozen=True)
class KimiK15LengthReward(RewardShaping):
    """Kimi k1.5's length reward: r + factor * l,  l = 0.5 - (n - min n) / (max n - min n); a wrong rollout gets min(0, l).

    n is the number of sampled tokens; min and max are over the group. The reward is unchanged in the first `warmup` steps of the
    phase (below 1: a share of the phase's steps).
    Paper: Kimi Team 2025 (k1.5), arXiv:2501.12599, sec. 2.3.3.  Edge: in a group of equal lengths nothing changes.
    """

    factor: float = 1.0
    warmup: float = 0
    punishes_length = True

    def check(self, run: RunContext) -> None:
        check_begins(run, f"reward_shaping: {self.name!r} warmup", self.warmup)
        check_single_length_penalty(run)

    def __call__(self, group: Group) -> list[float]:
        if self.warmup and self.run.phase_step < steps_of(self.warmup, self.run):
            return group.rewards
        length_B, correct_B = torch.tensor([rollout.sampled_tokens for rollout in group]), torch.tensor([rollout.correct for rollout in group])
        bonuses = kimi_length_reward(length_B, correct_B, torch.zeros_like(length_B)).tolist()
        return [r + self.factor * bonus for r, bonus in zip(group.rewards, bonuses, strict=True)]


@register("kimi_k1_5")
@dataclass(frozen=True)
class KimiK15(SequencePolicyLoss):
    """Kimi k1.5's mirror descent loss: L_i = -A_i log pi(y_i) + tau / 2 * (log pi(y_i) - log pi_old(y_i))^2,  A_i = r_i - mean r.

    Log-probs are sums over the rollout, in nats; tau is per nat squared. The loss is per sequence.
    Paper: Kimi Team 2025 (k1.5), arXiv:2501.12599, eq. 3: its gradient.  The reference is the policy at the start of the step. Use advantage grpo
    with scale "none".
    """

    tau: float = 0.1

    def __call__(self, x: LossInputs) -> PerToken:
        return mirror_descent_loss(x.logp_BT, x.old_logp_BT, x.advantage_BT, x.mask_BT, self.tau)
