"""Token weights: factors on the policy loss of single tokens.

tis                 truncated importance sampling, for an engine whose log-probs or weights differ from the trainer's
icepop              IcePop: masks the tokens on which trainer and engine disagree
mask_given_prefix   no policy gradient on tokens that come from a demonstration
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vlrl import functional
from vlrl.methods.common.demonstrations import GIVEN_TOKENS
from vlrl.registry import register
from vlrl.stages import TokenWeight
from vlrl.types import LossInputs


def engine_mask(x: LossInputs) -> Tensor:
    """(B, T) bool: trained tokens of rollouts that the policy's engine sampled; log-probs of other rollouts are not the engine's."""
    sampled_B1 = torch.tensor([[rollout.source == "policy" and bool(rollout.logp)] for rollout in x.batch.rollouts], device=x.mask_BT.device)
    return (x.mask_BT > 0) & sampled_B1


@register("tis")
@dataclass(frozen=True)
class TIS(TokenWeight):
    """Truncated importance sampling: w = min(rho, cap), rho = pi_old / pi_engine; with mode "mask" w = rho where floor <= rho <= cap, else 0.

    `level`: rho of the token; of the sequence (product over its trained tokens); or the product's T-th root ("geometric", as in GSPO's ratio,
    arXiv:2507.18071, eq. 7). pi_old is the policy that the step started from, recomputed by the trainer. With a stale engine this is the
    behaviour weight of decoupled PPO (Fu et al. 2025, arXiv:2505.24298, section on the decoupled PPO objective).
    Paper: truncation of Ionides 2008 in IMPALA, arXiv:1802.01561, eq. 1. Deviates: no lower cap is needed for truncation, `floor` is used by "mask"
    alone. Edge: tokens outside the loss mask and rollouts of another source (expert, replayed text without log-probs) get 1; `cap` 0 is none.
    """

    level: Literal["token", "sequence", "geometric"] = "token"
    mode: Literal["truncate", "mask"] = "truncate"
    cap: float = 2.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.cap < 0 or not 0 <= self.floor <= (self.cap or float("inf")):
            raise ValueError(f"cap={self.cap} must be positive (0: none), floor={self.floor} between 0 and cap")

    def __call__(self, x: LossInputs) -> Tensor:
        return functional.importance_weights(
            x.old_logp_BT, x.sampled_logp_BT, engine_mask(x), level=self.level, mode=self.mode, cap=self.cap or None, floor=self.floor
        )


@register("icepop")
@dataclass(frozen=True)
class IcePop(TokenWeight):
    """IcePop: w_t = rho_t if low <= rho_t <= high else 0, rho_t = pi_old(y_t) / pi_engine(y_t). Masks tokens on which trainer and engine disagree.

    Paper: Ling Team 2025 (Ring-1T), arXiv:2510.18855, section on IcePop; defaults 0.5 and 5 are theirs. Edge: as in `tis`.
    """

    low: float = 0.5
    high: float = 5.0

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(f"low={self.low} and high={self.high} must satisfy 0 <= low < high")

    def __call__(self, x: LossInputs) -> Tensor:
        return functional.icepop_weights(x.old_logp_BT, x.sampled_logp_BT, engine_mask(x), low=self.low, high=self.high)


def after_given_tokens(x: LossInputs) -> Tensor:
    """(B, T) bool: the tokens after the first GIVEN_TOKENS of each rollout, which come from a demonstration."""
    given_B1 = torch.tensor([[GIVEN_TOKENS.get(rollout, 0)] for rollout in x.batch.rollouts], device=x.mask_BT.device)
    return torch.arange(x.mask_BT.shape[1], device=x.mask_BT.device) >= given_B1


@register("mask_given_prefix")
@dataclass(frozen=True)
class MaskGivenPrefix(TokenWeight):
    """SEELE's mask: w_t = 0 for the first GIVEN_TOKENS of a rollout, which come from a demonstration, else 1. Loss terms may still train on them.

    Paper: Li et al. 2025 (SEELE), arXiv:2509.06923, sec. 4.2: the policy gradient is of generated tokens alone. Deviates: given tokens still count
    in the denominator of the loss aggregation. Edge: rollouts without given tokens have weight 1. Shape: (B, T).
    """

    requires = (GIVEN_TOKENS,)

    def __call__(self, x: LossInputs) -> Tensor:
        return after_given_tokens(x).to(x.mask_BT)
