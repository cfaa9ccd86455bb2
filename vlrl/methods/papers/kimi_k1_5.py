"""Shorter is better among the right ones.

Online policy mirror descent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from vlrl.functional import kimi_length_reward, mirror_descent_loss
from vlrl.methods.core.policy_loss import WholeRollout
from vlrl.methods.core.reward_shaping import check_alone
from vlrl.registry import register
from vlrl.stages import RewardShaping
from vlrl.types import Group, LossInputs, PerToken

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("kimi_k1_5.length_reward")
@dataclass(frozen=True)
class KimiK15LengthReward(RewardShaping):
    """r + factor * l,  l = 0.5 - (n - min n) / (max n - min n); a wrong rollout gets min(0, l).  n in tokens, over the group.

    `warmup` steps of the phase without it.
    Paper: Kimi Team 2025 (k1.5), arXiv:2501.12599, sec. 2.3.3.  Edge: all lengths equal: nothing changes. Right means a reward above `threshold`.
    """

    factor: float = 1.0
    warmup: int = 0
    threshold: float = 0.5
    punishes_length = True
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def check(self, run: RunContext) -> None:
        check_alone(run)

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, group: Group) -> list[float]:
        if self.run is not None and self.run.phase_step < self.warmup:
            return group.rewards
        length_B, correct_B = torch.tensor([len(rollout) for rollout in group]), torch.tensor([r > self.threshold for r in group.rewards])
        bonuses = kimi_length_reward(length_B, correct_B, torch.zeros_like(length_B)).tolist()
        return [r + self.factor * bonus for r, bonus in zip(group.rewards, bonuses, strict=True)]


@register("kimi_k1_5")
@dataclass(frozen=True)
class KimiK15(WholeRollout):
    """L_i = -A_i log pi(y_i) + tau / 2 * (log pi(y_i) - log pi_old(y_i))^2, log-probs summed over the rollout, A_i = r_i - mean r.

    Paper: Kimi Team 2025 (k1.5), arXiv:2501.12599, eq. 3: its gradient.  The reference is the policy at the start of the step. Use advantage grpo
    with scale "none". The loss is per sequence; tau is per nat squared.
    """

    tau: float = 0.1

    def __call__(self, x: LossInputs) -> PerToken:
        return mirror_descent_loss(x.logp_BT, x.old_logp_BT, x.advantage_BT, x.mask_BT, self.tau)
