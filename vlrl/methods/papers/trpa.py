"""TRPA: trust region preference approximation, a preference loss between the reward levels of a prompt's
rollouts.

`trpa` is a policy loss. Paper: Su et al. 2025 (TRPA), arXiv:2504.04524, with released code.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.common.correctness import correct_rollouts
from vlrl.methods.common.groups import members
from vlrl.methods.core.policy_loss import SequencePolicyLoss
from vlrl.plugins.registry import register
from vlrl.services.lazy import nn, torch
from vlrl.types import LossInputs, UnreducedLoss


@register("trpa")
@dataclass(frozen=True)
class TRPA(SequencePolicyLoss):
    """TRPA: the mean over pairs of a group with r_w > r_l of -log sigmoid(beta (s_w - s_l)), s = mean over
    tokens of log pi - log pi_ref.

    Levels are the distinct rewards (correct / well-formed but wrong / unparseable / badly formed), only their
    order counts; pairs whose better side is correct use `anisotropy` * beta. A group without pairs falls back
    to -log sigmoid(+s) for a correct rollout, else -log sigmoid(-s). Paper: Su et al. 2025, arXiv:2504.04524,
    eq. 8-12; the released code has anisotropy 2.5.  The loss is per sequence: a group's loss on each of its
    members.
    """

    beta: float = 1.0
    anisotropy: float = 2.5
    ref: str = "ref_logp"
    zero_without_advantage = False

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.ref,)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        s_B = ((x.logp_BT - x[self.ref]) * x.mask_BT).sum(-1) / x.length_B
        correct_B = correct_rollouts(x) > 0
        loss_B = torch.zeros_like(s_B)
        pairs_B = torch.zeros_like(s_B)
        for rows in members(x.group_B, "group"):
            s, r, correct = s_B[rows], x.reward_B[rows], correct_B[rows]
            better = r[:, None] > r[None, :]
            pairs_B[rows] = better.sum().to(s)
            if better.any():
                beta = torch.where(correct, self.anisotropy * self.beta, self.beta)[:, None]
                value = -nn.functional.logsigmoid(beta * (s[:, None] - s[None, :]))[better].mean()
            else:
                value = -nn.functional.logsigmoid(torch.where(correct, s, -s)).mean()
            loss_B = loss_B.index_fill(0, rows, 0.0) + torch.zeros_like(s_B).index_fill(0, rows, 1.0) * value
        return UnreducedLoss(loss_B, {"pairs": pairs_B, "ratio": x.log_ratio_BT.exp().detach()})
