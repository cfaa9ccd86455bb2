"""Light-IF: a cold start on the most surprising tokens (Entropy-SFT), then RL with a token-wise
entropy-adaptive regulariser (TEA-RL).

    light_if.surprise_nll         loss term of the cold start: NLL on the tokens with the largest -log pi -
    rho H
    light_if.covariance_entropy   loss term of TEA-RL: an entropy bonus on tokens whose reinforcement lowers
    the entropy

Paper: Light-IF, arXiv:2508.03178, with released code.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.common.groups import members, top_share
from vlrl.methods.papers.entropy_mechanism import covariance
from vlrl.plugins.registry import register
from vlrl.plugins.stages import LossTerm
from vlrl.services.lazy import torch
from vlrl.types import LossInputs, PerToken


@register("light_if.surprise_nll")
@dataclass(frozen=True, kw_only=True)
class LightIfSurpriseNll(LossTerm):
    """Light-IF's Entropy-SFT loss: -log pi on the `share` of tokens with the largest delta = -log pi - rho H,
    times n / k.

    n is the number of tokens of the group, k of chosen ones: under token_mean the loss is the mean over the
    chosen tokens. H is the entropy in nats. Paper: Light-IF, arXiv:2508.03178, Entropy-SFT; checked against
    custom_entropy_trainer.py of the release (cross-entropy of the chosen tokens). Deviates: tokens are chosen
    per group and not per batch, so that the split into micro-batches does not matter. The defaults are the
    release's (token_ratio 0.2, entropy_coef 1.0).
    """

    rho: float = 1.0
    share: float = 0.2
    needs = ("entropy",)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(
                f"share={self.share} must be in (0, 1]: the share of tokens that are learned from"
            )

    def __call__(self, x: LossInputs) -> PerToken:
        delta_BT = (-x.logp_BT - self.rho * x["entropy"]).detach()
        chosen_BT = top_share(delta_BT, x.mask_BT, x.group_B, self.share)
        scale_B = torch.ones_like(x.reward_B)
        for rows in members(x.group_B, "group"):
            scale_B[rows] = x.mask_BT[rows].sum() / chosen_BT[rows].sum().clamp(min=1)
        loss_BT = torch.where(chosen_BT, -x.logp_BT * scale_B[:, None], 0.0)
        return PerToken(loss_BT, {"nll": -x.logp_BT.detach() * x.mask_BT, "chosen": chosen_BT.to(x.logp_BT)})


@register("light_if.covariance_entropy")
@dataclass(frozen=True, kw_only=True)
class LightIfCovarianceEntropy(LossTerm):
    """Light-IF's TEA-RL term: L_t = -c_t H_t,  c_t = min(alpha softmax_t(cov), max_coef),  cov_t = (A_t -
    mean A)(log pi_t - mean log pi).

    The softmax is over a rollout's tokens, the means over the group. A positive `coef` raises the entropy of
    tokens whose reinforcement lowers it. Paper: Light-IF, arXiv:2508.03178, TEA-RL; checked against
    compute_entropy_with_cov of the release (alpha 10, max_coef 5), which its actor does not reach. Deviates:
    c_t carries no gradient (there also through log pi), and means are over the group, not the micro-batch.
    Edge: weights sum to at most alpha, so short answers get a strong bonus: at five tokens 2 each, which
    destroyed a tiny policy (docs/LOG.md); use a smaller alpha there.
    """

    alpha: float = 10.0
    max_coef: float = 5.0
    needs = ("entropy",)

    def __call__(self, x: LossInputs) -> PerToken:
        cov_BT = covariance(x).masked_fill(x.mask_BT == 0, -torch.inf)
        coef_BT = (self.alpha * cov_BT.softmax(-1)).clamp(max=self.max_coef).nan_to_num() * x.mask_BT
        return PerToken(-coef_BT * x["entropy"], {"entropy": x["entropy"].detach(), "entropy_coef": coef_BT})
