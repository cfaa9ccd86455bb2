"""The entropy mechanism of RL: Clip-Cov and KL-Cov restrict the tokens whose covariance of log-prob and
advantage lowers the entropy.

`entropy_mechanism.clip_cov` takes the gradient from some of these tokens, `entropy_mechanism.kl_cov`
penalises their drift; both are policy losses.

Paper: Cui et al. 2025 (The Entropy Mechanism), arXiv:2505.22617, eq. 12-15, and the released code.

`scope`: means, counts and ranking are over the tokens of the micro-batch ("batch", as in the released code;
with `micro_batch_tokens` of a whole mini-batch these are the paper's) or of each group ("group", which does
not depend on the split into micro-batches). Advantages that are centred by group have a mean of zero over
either; the difference is the mean log-prob and which tokens compete.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

from vlrl.methods.common.groups import Scope, members
from vlrl.methods.core.policy_loss import PPOClip, check_several_updates
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import PolicyLoss
from vlrl.services.lazy import Tensor, torch
from vlrl.types import LossInputs, UnreducedLoss


@register("entropy_mechanism.clip_cov")
@dataclass(frozen=True)
class EntropyMechanismClipCov(PPOClip):
    """Clip-Cov: PPO's clipped loss, without gradient on a random `share` of the tokens whose covariance is in
    (cov_low, cov_high).

    Tokens that the clip already holds are not drawn; at least one token of a `scope` is, if any qualifies.
    The draw is a function of the tokens, so that a step can be repeated. Eq. 12-13;
    compute_policy_loss_clip_cov in verl/trainer/ppo/core_algos.py of PRIME-RL/Entropy-Mechanism-of-RL
    88505792 (share 2e-4, bounds 1 and 5).
    """

    share: float = 2e-4
    cov_low: float = 1.0
    cov_high: float = 5.0
    scope: Scope = "group"
    off_policy: bool = True

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        out = super().__call__(x)
        cov_BT = covariance(x, self.scope)
        eligible_BT = (
            (cov_BT > self.cov_low)
            & (cov_BT < self.cov_high)
            & (out.metrics["clip_fraction"] == 0)
            & (x.mask_BT > 0)
        )
        detached_BT = torch.zeros_like(eligible_BT)
        for rows in members(x.group_B, self.scope):
            places = eligible_BT[rows].nonzero()
            wanted = max(1, math.floor(self.share * float(x.mask_BT[rows].sum()))) if len(places) else 0
            seed = zlib.crc32(x.batch.ids_BT[rows][x.mask_BT[rows] > 0].cpu().numpy().tobytes())
            order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))[:wanted].to(
                places.device
            )
            chosen = places[order]
            detached_BT[rows[chosen[:, 0]], chosen[:, 1]] = True
        loss_BT = torch.where(detached_BT, out.loss.detach(), out.loss)
        return UnreducedLoss(loss_BT, {**out.metrics, "held_back": detached_BT.float()})


@register("entropy_mechanism.kl_cov")
@dataclass(frozen=True)
class EntropyMechanismKlCov(PolicyLoss):
    """KL-Cov: the unclipped policy gradient, with a KL penalty on the max(1, floor(share n)) of the n tokens
    of a `scope` with the highest covariance.

        L = -r A + beta |log r| on these tokens, -r A on the others

    Eq. 14-15 (share 2e-3 for 7B, beta 1). |log r| as the KL, and the number of tokens, are those of
    compute_policy_loss_kl_cov in verl/trainer/ppo/core_algos.py of PRIME-RL/Entropy-Mechanism-of-RL 88505792,
    which ranks the tokens of a micro-batch. Edge: of equal covariances the earlier token is taken.
    """

    share: float = 2e-3
    beta: float = 1.0
    scope: Scope = "group"

    def check(self, phase: PhaseContext) -> None:
        check_several_updates(phase, self.name)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        log_ratio_BT = x.log_ratio_BT
        chosen_BT = top_tokens(covariance(x, self.scope), x.mask_BT, x.group_B, self.share, self.scope)
        drift_BT = log_ratio_BT.abs()
        loss_BT = -log_ratio_BT.exp() * x.advantage_BT + torch.where(chosen_BT, self.beta * drift_BT, 0.0)
        return UnreducedLoss(loss_BT, {"held_back": chosen_BT.float(), "ratio": log_ratio_BT.exp().detach()})


def top_tokens(
    value_BT: Tensor, mask_BT: Tensor, group_B: Tensor, share: float, scope: Scope = "group"
) -> Tensor:
    """(B, T) bool: the max(1, floor(share n)) largest of the n values of each `scope` in the mask; of equal
    ones the earlier."""
    chosen_BT = torch.zeros_like(mask_BT, dtype=torch.bool)
    for rows in members(group_B, scope):
        places = (mask_BT[rows] > 0).nonzero()
        values = value_BT[rows][places[:, 0], places[:, 1]]
        best = places[values.argsort(descending=True, stable=True)[: max(1, math.floor(share * len(places)))]]
        chosen_BT[rows[best[:, 0]], best[:, 1]] = True
    return chosen_BT


def covariance(x: LossInputs, scope: Scope = "group") -> Tensor:
    """(B, T): (log pi - its mean) (A - its mean), means over the tokens of the `scope`; zero outside the
    mask."""
    out_BT = torch.zeros_like(x.logp_BT).detach()
    for rows in members(x.group_B, scope):
        mask = x.mask_BT[rows]
        n = mask.sum().clamp(min=1)
        logp, advantage = x.logp_BT[rows].detach(), x.advantage_BT[rows]
        out_BT[rows] = (logp - (logp * mask).sum() / n) * (advantage - (advantage * mask).sum() / n) * mask
    return out_BT
