"""Token weights: factors on the policy loss of single tokens.

tis                 truncated importance sampling, for an engine whose log-probs or weights differ from the
trainer's
icepop              IcePop: masks the tokens on which trainer and engine disagree
rejection           masks tokens or rollouts by an estimate of the divergence of trainer and engine
off_policy_sequence_mask   DeepSeek-V3.2's: no loss on bad rollouts from which the policy has moved away
mask_given_prefix   no policy gradient on tokens that come from a demonstration
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl import functional
from vlrl.methods.common.demonstrations import GIVEN_TOKENS
from vlrl.plugins.registry import register
from vlrl.plugins.stages import State, TokenWeight, transient
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, LossInputs, Rollout


def engine_mask(x: LossInputs) -> Tensor:
    """(B, T) bool: trained tokens of rollouts that the policy's engine sampled; log-probs of other rollouts
    are not the engine's."""
    sampled_B1 = torch.tensor(
        [[rollout.source == "policy" and bool(rollout.logp)] for rollout in x.batch.rollouts],
        device=x.mask_BT.device,
    )
    return (x.mask_BT > 0) & sampled_B1


@dataclass
class TISState(State):
    """The mean of the weights of the step."""

    mean: float = transient(1.0)


@register("tis")
@dataclass(frozen=True)
class TIS(TokenWeight):
    """Truncated importance sampling: w = min(rho, cap), rho = pi_old / pi_engine; with mode "mask" w = rho
    where floor <= rho <= cap, else 0.

    pi_old is the policy that the step started from, recomputed by the trainer. With a stale engine this is
    the behaviour weight of decoupled PPO (Fu et al. 2025, arXiv:2505.24298, section on the decoupled PPO
    objective). Paper: truncation of Ionides 2008 in IMPALA, arXiv:1802.01561, eq. 1. Deviates: no lower cap
    is needed for truncation, `floor` is used by "mask" alone. Edge: tokens outside the loss mask and rollouts
    of another source (expert, replayed text without log-probs) get 1; `cap` 0 is none.

    Attributes:
        level: rho of the token; of the sequence (product over its trained tokens); or the product's T-th root
            ("geometric", as in GSPO's ratio, arXiv:2507.18071, eq. 7).
        normalise: Divides the weights by their mean over the trained tokens (or rollouts) of the step, on all
            ranks, so that the correction does not change the size of the loss (batch normalisation of
            verl-project/verl 1dda039b, rollout_corr_helper.py).
        by_length: `cap` and `floor` are those of one token: a sequence of T has cap^sqrt(T), its root
            cap^(1/sqrt(T)), since rounding adds up as a random walk (vlrl original).
    """

    state_class = TISState
    corrects_engine = True
    level: Literal["token", "sequence", "geometric"] = "token"
    mode: Literal["truncate", "mask"] = "truncate"
    cap: float = 2.0
    floor: float = 0.0
    normalise: bool = False
    by_length: bool = False

    def __post_init__(self) -> None:
        if self.by_length and self.level == "token":
            raise ValueError(
                "by_length=True has no effect with level='token', whose bounds are those of one token; set "
                "level to 'sequence' or 'geometric', or leave by_length out"
            )
        if self.by_length and 0 < self.cap < 1:
            raise ValueError(f"by_length=True works with a cap of at least 1 (0: none), got cap={self.cap}")
        if self.by_length and self.floor > 1:
            raise ValueError(f"by_length=True works with a floor of at most 1, got floor={self.floor}")
        if self.cap < 0 or not 0 <= self.floor <= (self.cap or float("inf")):
            raise ValueError(
                f"cap={self.cap} must be positive (0: none), floor={self.floor} between 0 and cap"
            )

    @property
    def needs(self) -> tuple[str, ...]:
        return ("old_logp",) if self.normalise else ()

    def prepare(self, groups: Sequence[Group]) -> None:
        if not self.normalise:
            return
        sums = [
            self.sums(rollout)
            for group in groups
            for rollout in group
            if rollout.source == "policy" and rollout.logp and rollout.trained_tokens
        ]
        everyone = self.run.gather(
            [(math.fsum(total for total, _ in sums), math.fsum(count for _, count in sums))]
        )
        total, count = (math.fsum(values) for values in zip(*everyone))
        self.state.mean = total / count if total > 0 else 1.0

    def sums(self, rollout: Rollout) -> tuple[float, float]:
        """The sum of a rollout's weights and their number, over its trained tokens, or 1 for a weight of the
        whole rollout."""
        old_1T, sampled_1T, mask_1T = (
            torch.tensor([row]) for row in (rollout.signals["old_logp"], rollout.logp, rollout.trained_mask)
        )
        return functional.weight_sums(self.weights(old_1T, sampled_1T, mask_1T), mask_1T, level=self.level)

    def weights(self, old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """The weights, not normalised."""
        cap = self.cap or None
        return functional.importance_weights(
            old_BT,
            sampled_BT,
            mask_BT,
            level=self.level,
            mode=self.mode,
            cap=cap,
            floor=self.floor,
            by_length=self.by_length,
        )

    def __call__(self, x: LossInputs) -> Tensor:
        mask_BT = engine_mask(x)
        weight = self.weights(x.old_logp_BT, x.sampled_logp_BT, mask_BT)
        return (
            torch.where(mask_BT.any(-1, keepdim=True), weight / self.state.mean, weight)
            if self.normalise
            else weight
        )


@register("icepop")
@dataclass(frozen=True)
class IcePop(TokenWeight):
    """IcePop: w_t = rho_t if low <= rho_t <= high else 0, rho_t = pi_old(y_t) / pi_engine(y_t). Masks tokens
    on which trainer and engine disagree.

    Paper: Ling Team 2025 (Ring-1T), arXiv:2510.18855, section on IcePop; defaults 0.5 and 5 are theirs. Edge:
    as in `tis`.
    """

    corrects_engine = True
    low: float = 0.5
    high: float = 5.0

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(f"low={self.low} and high={self.high} must satisfy 0 <= low < high")

    def __call__(self, x: LossInputs) -> Tensor:
        return functional.icepop_weights(
            x.old_logp_BT, x.sampled_logp_BT, engine_mask(x), low=self.low, high=self.high
        )


@register("rejection")
@dataclass(frozen=True)
class Rejection(TokenWeight):
    """Rejection by divergence: w = 1 where the estimate of the divergence of trainer and engine is at most
    `limit`, else 0.

    u = log pi_old - log pi_engine; `estimator`: k1 = |u|, k2 = u^2 / 2, k3 = e^u - u - 1. `level`: of the
    token, or the sum, the mean or the maximum over the rollout's trained tokens, which then has one weight.
    vlrl original in form; as rollout_rs of verl-project/verl 1dda039b
    (verl/trainer/ppo/rollout_corr_helper.py). Edge: as in `tis`. Units: nats.
    """

    corrects_engine = True
    estimator: Literal["k1", "k2", "k3"] = "k3"
    level: Literal["token", "sequence_sum", "sequence_mean", "sequence_max"] = "token"
    limit: float = 0.01

    def __post_init__(self) -> None:
        if self.limit <= 0:
            raise ValueError(f"limit={self.limit} must be above 0")

    def __call__(self, x: LossInputs) -> Tensor:
        mask_BT = engine_mask(x)
        return functional.rejection_mask(
            x.old_logp_BT, x.sampled_logp_BT, mask_BT, kind=self.estimator, level=self.level, limit=self.limit
        )


@register("off_policy_sequence_mask")
@dataclass(frozen=True)
class OffPolicySequenceMask(TokenWeight):
    """DeepSeek-V3.2's off-policy sequence mask: w_t = 0 where A_t < 0 and mean_t (log pi_engine - log pi) >
    delta, else 1.

    The mean is over the rollout's trained tokens. It counts both the updates since sampling and the
    difference of trainer and engine. Paper: DeepSeek-V3.2, arXiv:2512.02556, sec. 3.1, which leaves delta
    open; 1e-4 is slime's default (THUDM/slime 624b824a, opsm_delta). Edge: rollouts of another source
    (experts, replayed text without log-probs) have 1. Units: nats per token.
    """

    corrects_engine = True
    delta: float = 1e-4

    def __call__(self, x: LossInputs) -> Tensor:
        mask_BT = functional.off_policy_sequence_mask(
            x.logp_BT, x.sampled_logp_BT, x.advantage_BT, x.mask_BT, delta=self.delta
        )
        return torch.where(engine_mask(x), mask_BT, torch.ones_like(mask_BT))


def after_given_tokens(x: LossInputs) -> Tensor:
    """(B, T) bool: the tokens after the first GIVEN_TOKENS of each rollout, which come from a
    demonstration."""
    given_B1 = torch.tensor(
        [[GIVEN_TOKENS.get(rollout, 0)] for rollout in x.batch.rollouts], device=x.mask_BT.device
    )
    return torch.arange(x.mask_BT.shape[1], device=x.mask_BT.device) >= given_B1


@register("mask_given_prefix")
@dataclass(frozen=True)
class MaskGivenPrefix(TokenWeight):
    """SEELE's mask: w_t = 0 for the first GIVEN_TOKENS of a rollout, which come from a demonstration, else 1.
    Loss terms may still train on them.

    Paper: Li et al. 2025 (SEELE), arXiv:2509.06923, sec. 4.2: the policy gradient is of generated tokens
    alone. Deviates: given tokens still count in the denominator of the loss aggregation. Edge: rollouts
    without given tokens have weight 1. Shape: (B, T).
    """

    requires = (GIVEN_TOKENS,)

    def __call__(self, x: LossInputs) -> Tensor:
        return after_given_tokens(x).to(x.mask_BT)
