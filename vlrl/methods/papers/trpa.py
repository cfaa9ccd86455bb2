"""Preferences between levels of rollouts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid

from vlrl.methods.common.groups import members
from vlrl.methods.core.policy_loss import WholeRollout
from vlrl.registry import register
from vlrl.types import LossInputs, PerToken


@register("trpa")
@dataclass(frozen=True)
class TRPA(WholeRollout):
    """For every pair of a group with r_w > r_l: -log sigmoid(beta (s_w - s_l)), s = mean over tokens of log pi - log pi_ref; mean over pairs.

    Levels are the distinct rewards (right / well-formed but wrong / unparseable / badly formed), only their order counts; pairs whose better side
    is right (above `threshold`) use `anisotropy` * beta. A group without pairs falls back to -log sigmoid(+s) if right, else -log sigmoid(-s).
    Paper: Su et al. 2025, arXiv:2504.04524, eq. 8-12; the released code has anisotropy 2.5.  The loss is per sequence: a group's loss on each of
    its members.
    """

    beta: float = 1.0
    anisotropy: float = 2.5
    threshold: float = 0.5
    ref: str = "ref_logp"
    zero_without_advantage = False

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.ref,)

    def __call__(self, x: LossInputs) -> PerToken:
        s_B = ((x.logp_BT - x[self.ref]) * x.mask_BT).sum(-1) / x.length_B
        loss_B = torch.zeros_like(s_B)
        pairs_B = torch.zeros_like(s_B)
        for rows in members(x.group_B, "group"):
            s, r = s_B[rows], x.reward_B[rows]
            better = r[:, None] > r[None, :]
            pairs_B[rows] = better.sum().to(s)
            if better.any():
                beta = torch.where(r > self.threshold, self.anisotropy * self.beta, self.beta)[:, None]
                value = -logsigmoid(beta * (s[:, None] - s[None, :]))[better].mean()
            else:
                value = -logsigmoid(torch.where(r > self.threshold, s, -s)).mean()
            loss_B = loss_B.index_fill(0, rows, 0.0) + torch.zeros_like(s_B).index_fill(0, rows, 1.0) * value
        return PerToken(loss_B, {"pairs": pairs_B, "ratio": x.log_ratio_BT.exp().detach()})
