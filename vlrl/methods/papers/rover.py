"""ROVER: random policy valuation, RL with the Q-function of the uniform random policy, read off the
log-ratios of the trained policy.

    rover.vocab_mean       aux tensor: mean of the log-probs over the vocabulary
    rover.old_vocab_mean   aux tensor: the same of the policy at the start of the step
    rover                  policy loss: the squared Bellman error

Paper: He et al. 2025 (ROVER), arXiv:2509.24981, sec. 4 and eq. 6-8.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import AuxTensor, PolicyLoss
from vlrl.plugins.views import PolicyView
from vlrl.services.lazy import Tensor, torch
from vlrl.types import LossInputs, PerToken, TokenBatch


@register("rover.vocab_mean")
@dataclass(frozen=True, kw_only=True)
class RoverVocabMean(AuxTensor):
    """mean_v log pi(v | s_t): the expected log-prob (nats) under the uniform policy.

    The mean is over the tokens that can be drawn (logit > -inf). Paper: He et al. 2025 (ROVER),
    arXiv:2509.24981, sec. 4. Shapes: (N, V) to (N,), with gradient.
    """

    in_forward = True

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        impossible_NV = logits_NV == float("-inf")
        total_N = logits_NV.masked_fill(impossible_NV, 0.0).sum(-1)
        return total_N / (~impossible_NV).sum(-1) - logits_NV.logsumexp(-1)


@register("rover.old_vocab_mean")
@dataclass(frozen=True, kw_only=True)
class RoverOldVocabMean(AuxTensor):
    """mean_v log pi_old(v | s_t), of the policy at the start of the step.

    Paper: He et al. 2025 (ROVER), arXiv:2509.24981, sec. 4. Shapes: (B, T).
    """

    at_start = True

    def __call__(self, policy: PolicyView, batch: TokenBatch) -> Tensor:
        return policy.forward(batch, [RoverVocabMean()])["rover.vocab_mean"]


@register("rover")
@dataclass(frozen=True)
class Rover(PolicyLoss):
    """ROVER's loss: the squared difference of Q and its target, the reward plus the value of the next state
    under the uniform policy.

        L = (Q_t - sg(r + V_{t+1}))^2,  Q_t = rho log(pi / pi_old)(a_t),  V_{t+1} = rho mean_v log(pi /
        pi_old)(v | s_{t+1})

    V is 0 after the last token. r is the advantage: use grpo with scale "none" (reward minus group mean). No
    clipping and no KL: the policy is the softmax of Q.
    Paper: He et al. 2025, arXiv:2509.24981, eq. 6-8. Edge: on the old policy the gradient is -2 rho r grad
    log pi.
    """

    rho: float = 1.0
    needs = ("rover.vocab_mean", "rover.old_vocab_mean")
    zero_without_advantage = False

    def __post_init__(self) -> None:
        if self.rho <= 0:
            raise ValueError(f"rho={self.rho} must be above 0")

    def __call__(self, x: LossInputs) -> PerToken:
        q_BT = self.rho * x.log_ratio_BT
        value_BT = self.rho * ((x["rover.vocab_mean"] - x["rover.old_vocab_mean"]) * x.mask_BT).detach()
        next_value_BT = torch.cat([value_BT[:, 1:], torch.zeros_like(value_BT[:, :1])], -1)
        return PerToken(
            (q_BT - x.advantage_BT - next_value_BT).square(),
            {"q": q_BT.detach(), "ratio": x.log_ratio_BT.exp().detach()},
        )
