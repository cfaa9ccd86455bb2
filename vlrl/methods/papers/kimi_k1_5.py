"""Shorter is better among the right ones.

Online policy mirror descent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
        lengths = [len(rollout) for rollout in group]
        spread = max(lengths) - min(lengths)
        if not spread or (self.run is not None and self.run.phase_step < self.warmup):
            return group.rewards
        bonuses = [0.5 - (n - min(lengths)) / spread for n in lengths]
        return [r + self.factor * (b if r > self.threshold else min(0.0, b)) for r, b in zip(group.rewards, bonuses)]


@register("kimi_k1_5")
@dataclass(frozen=True)
class KimiK15(WholeRollout):
    """L_i = -A_i log pi(y_i) + tau / 2 * (log pi(y_i) - log pi_old(y_i))^2, log-probs summed over the rollout, A_i = r_i - mean r.

    Paper: Kimi Team 2025 (k1.5), arXiv:2501.12599, eq. 3: its gradient.  The reference is the policy at the start of the step. Use advantage grpo
    with scale "none". The loss is per sequence; tau is per nat squared.
    """

    tau: float = 0.1

    def __call__(self, x: LossInputs) -> PerToken:
        advantage_B = (x.advantage_BT * x.mask_BT).sum(-1) / x.length_B
        drift_B = x.log_ratio_BT.sum(-1)
        logp_B = (x.logp_BT * x.mask_BT).sum(-1)
        return PerToken(-advantage_B * logp_B + self.tau / 2 * drift_B.square(), {"drift": drift_B.detach(), "ratio": x.log_ratio_BT.exp().detach()})
