"""GSPO: group sequence policy optimisation. Clipping uses the length-normalised ratio of the whole sequence.
Also GSPO-token.

Paper: Zheng et al. 2025 (GSPO), arXiv:2507.18071.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.functional import gspo_loss, gspo_token_loss
from vlrl.methods.core.policy_loss import SequencePolicyLoss
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import register
from vlrl.types import LossInputs, UnreducedLoss


@register("gspo")
@dataclass(frozen=True)
class GSPO(SequencePolicyLoss):
    """GSPO's policy loss: L = -min(s A, clip(s, 1 - low, 1 + high) A) with s = (pi(y) / pi_old(y))^(1 / |y|),
    the same for every token of a rollout.

    `token_level` (GSPO-token) gives each token the value s and the gradient of its own log-prob: s_t = sg(s)
    pi_t / sg(pi_t). With equal advantages along a rollout its loss and, under `sequence_mean`, its gradient
    are GSPO's, while advantages may differ from token to token. Paper: Zheng et al. 2025 (GSPO),
    arXiv:2507.18071, eq. 5-7 and 13-14; ranges 3e-4 and 4e-4 from sec. 5.1. Use loss_aggregation
    `sequence_mean`; with `constant` of length 1 it is LUSPO (arXiv:2602.05261).
    """

    low: float = 3e-4
    high: float = 4e-4
    token_level: bool = False

    def check(self, phase: PhaseContext) -> None:
        if not self.token_level:
            super().check(phase)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        loss = gspo_token_loss if self.token_level else gspo_loss
        return loss(x.logp_BT, x.old_logp_BT, x.advantage_BT, x.mask_BT, self.low, self.high)
