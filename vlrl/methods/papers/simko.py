"""SimKO: at high-entropy tokens, correct rollouts smooth their update over the top-K candidates, and wrong
top-1 tokens get a larger penalty.

    simko.topk_logp   auxiliary tensor: log-probs of the K most likely tokens
    simko             policy loss

Paper: Peng et al. 2025 (SimKO), arXiv:2510.14807, with released code.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.functional import clipped_ratio_loss
from vlrl.methods.common.groups import above_quantile
from vlrl.plugins.registry import register
from vlrl.plugins.stages import AuxTensor, PolicyLoss
from vlrl.services.lazy import Tensor, torch
from vlrl.types import LossInputs, UnreducedLoss


@register("simko.topk_logp")
@dataclass(frozen=True, kw_only=True)
class SimkoTopkLogp(AuxTensor):
    """The `k` largest log pi(v | s_t), in falling order (nats).

    Paper: Peng et al. 2025 (SimKO), arXiv:2510.14807, sec. 4.  Shapes: (N, V) to (N, k), with gradient.
    Edge: k is at most the vocabulary.
    """

    k: int = 3
    in_forward = True

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        return logits_NV.topk(min(self.k, logits_NV.shape[-1]), -1).values - logits_NV.logsumexp(
            -1, keepdim=True
        )


@register("simko")
@dataclass(frozen=True)
class SimKO(PolicyLoss):
    """SimKO's policy loss: PPO's clipped loss, changed on a rollout's tokens of high entropy: those above its
    (1 - `share`) quantile.

    There, label smoothing over the top K for A > 0, and a heavier penalty of the top-1 token for A < 0:

        A > 0:  r <- (1 - c) r + c / K sum_k r_k, r_k with the value of r and the gradient of candidate k's
        log-prob
        A < 0 and the sampled token is the most likely one:  A <- penalty * A

    c is `smoothing`, K that of aux tensor `simko.topk_logp`.
    Paper: Peng et al. 2025, arXiv:2510.14807, eq. 6-9; share 0.2, K 3, c 0.01, penalty 1.1 are the released
    code's.
    Candidates are those of the current forward, as in the released code (dp_actor.py:121-131), not of the old
    policy.
    """

    low: float = 0.2
    high: float = 0.2
    smoothing: float = 0.01
    penalty: float = 1.1
    share: float = 0.2
    needs = ("entropy", "simko.topk_logp")

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        forks_BT = above_quantile(x["entropy"], x.mask_BT, self.share)
        ratio_BT = x.log_ratio_BT.exp()
        top_BTK = x["simko.topk_logp"]
        candidates_BT = ratio_BT.detach() * (top_BTK - top_BTK.detach()).exp().mean(-1)
        smooth_BT = (1 - self.smoothing) * ratio_BT + self.smoothing * candidates_BT
        ratio_BT = torch.where(forks_BT & (x.advantage_BT > 0), smooth_BT, ratio_BT)
        is_top1_BT = x.logp_BT.detach() >= top_BTK[..., 0].detach() - 1e-6
        advantage_BT = torch.where(
            forks_BT & is_top1_BT & (x.advantage_BT < 0), self.penalty * x.advantage_BT, x.advantage_BT
        )
        return clipped_ratio_loss(ratio_BT, advantage_BT, self.low, self.high)
