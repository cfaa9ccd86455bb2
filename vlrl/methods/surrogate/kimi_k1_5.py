"""Online policy mirror descent."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.surrogate._whole import WholeRollout
from vlrl.registry import register
from vlrl.types import LossInputs, PerToken


@register("kimi_k1_5")
@dataclass(frozen=True)
class MirrorDescent(WholeRollout):
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
