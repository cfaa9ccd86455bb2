"""TRPA: trust region preference approximation, a preference loss between the reward levels of a prompt's
rollouts.

    trpa          policy loss: the pairs of a group, or of a step without pairs the rollouts one by one
    trpa.pairs    advantage: each group's share of the step's pairs

Paper: Su et al. 2025 (TRPA), arXiv:2504.04524; XueruiSu/Trust-Region-Preference-Approximation at f372585,
verl/trainer/ppo/core_algos.py (compute_pairwise_policy_loss).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.common.correctness import correct_rollouts
from vlrl.methods.common.groups import members
from vlrl.methods.core.policy_loss import SequencePolicyLoss
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.registry import register
from vlrl.plugins.stages import AdvantageEstimator
from vlrl.services.lazy import nn, torch
from vlrl.types import Group, LossInputs, UnreducedLoss

SHARES = Capability("trpa.shares", hint="advantage: {name: trpa.pairs}")


@register("trpa.pairs")
@dataclass(frozen=True)
class TRPAPairs(AdvantageEstimator):
    """TRPA's share of a group in the step: w = p_g N / (n_g p), p_g of the step's p pairs r_w > r_l, n_g of
    its N rollouts.

    The mean over the rollouts of w times the group's mean over its pairs is the mean over all pairs, so that
    a group without pairs counts nothing. A step without pairs: w = 1. Paper: Su et al. 2025,
    arXiv:2504.04524; the release's h_list holds the pairs of all prompts. Deviates: there those of a
    micro-batch.
    """

    provides = (SHARES,)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        pairs = [sum(a > b for a in group.rewards for b in group.rewards) for group in groups]
        total, rollouts = sum(pairs), sum(map(len, groups))
        return [
            [found * rollouts / (len(group) * total) if total else 1.0] * len(group)
            for group, found in zip(groups, pairs, strict=True)
        ]


@register("trpa")
@dataclass(frozen=True)
class TRPA(SequencePolicyLoss):
    """TRPA: w times the mean over pairs of a group with r_w > r_l of -log sigmoid(beta (s_w - s_l)), s = mean
    over tokens of log pi - log pi_ref.

    Levels are the distinct rewards (correct / well-formed but wrong / unparseable / badly formed), only their
    order counts; pairs whose better side is correct use `anisotropy` * beta. w is the advantage `trpa.pairs`,
    0 for a group without pairs, but 1 in a step without any, where a correct rollout has -log sigmoid(+s),
    another -log sigmoid(-s). Paper: Su et al. 2025, arXiv:2504.04524, eq. 8-12; the released code has
    anisotropy 2.5. The loss is per sequence: a group's loss on each of its members.
    """

    beta: float = 1.0
    anisotropy: float = 2.5
    ref: str = "ref_logp"
    requires = (SHARES,)

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.ref,)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        s_B = ((x.logp_BT - x[self.ref]) * x.mask_BT).sum(-1) / x.length_B
        share_B = (x.advantage_BT * x.mask_BT).sum(-1) / x.length_B
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
        return UnreducedLoss(loss_B * share_B, {"pairs": pairs_B, "ratio": x.log_ratio_BT.exp().detach()})
