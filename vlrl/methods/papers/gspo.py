"""Sequence-level ratios."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vlrl.methods.core.policy_loss import WholeRollout, clipped
from vlrl.registry import register
from vlrl.types import LossInputs, PerToken

if TYPE_CHECKING:
    from vlrl.context import RunContext


def sequence_log_ratio(x: LossInputs) -> torch.Tensor:
    """(B, 1): the mean over a rollout's tokens of log pi - log pi_old."""
    return (x.log_ratio_BT.sum(-1) / x.length_B)[:, None]


@register("gspo")
@dataclass(frozen=True)
class GSPO(WholeRollout):
    """L = -min(s A, clip(s, 1 - low, 1 + high) A) with s = (pi(y) / pi_old(y))^(1 / |y|), the same for every token of a rollout.

    `token_level` (GSPO-token) gives each token the value s and the gradient of its own log-prob: s_t = sg(s) pi_t / sg(pi_t); with equal
    advantages along a rollout its loss and, under `sequence_mean`, its gradient are GSPO's, while advantages may differ from token to token.
    Paper: Zheng et al. 2025, arXiv:2507.18071, eq. 5-7 and 13-14; ranges 3e-4 and 4e-4 from sec. 5.1. Reduce with `sequence_mean`;
    with `constant` of length 1 it is LUSPO (arXiv:2602.05261).
    """

    low: float = 3e-4
    high: float = 4e-4
    token_level: bool = False

    def check(self, run: RunContext) -> None:
        if not self.token_level:
            super().check(run)

    def __call__(self, x: LossInputs) -> PerToken:
        log_s_B1 = sequence_log_ratio(x)
        if self.token_level:
            log_s_BT = log_s_B1.detach() + x.logp_BT - x.logp_BT.detach()
        else:
            log_s_BT = log_s_B1.expand_as(x.logp_BT)
        return clipped(log_s_BT.exp(), x.advantage_BT, self.low, self.high)
