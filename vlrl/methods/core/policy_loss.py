"""Policy losses.

ppo_clip          PPO's clipped ratio (variants: DAPO's clip-higher, dual clip)
dppo              DPPO's trust region on a token's probability
policy_gradient   REINFORCE's loss, without ratio or clip
zero_loss         no policy gradient, for phases that train on loss terms alone
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vlrl import functional
from vlrl.methods.core.token_credit import UNIFORM_CREDIT
from vlrl.plugins.capabilities import NO_POLICY_GRADIENT
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import PolicyLoss
from vlrl.types import LossInputs, UnreducedLoss


@dataclass(frozen=True)
class SequencePolicyLoss(PolicyLoss):
    """Base of the policy losses whose gradient is the same for all tokens of a rollout; credit that differs
    between tokens would be lost."""

    def check(self, phase: PhaseContext) -> None:
        if not phase.has(UNIFORM_CREDIT):
            raise ConfigError(
                f"policy_loss: {self.name!r} has one gradient for all tokens of a rollout, so what "
                f"token_credit {phase.token_credit.name!r} gives to "
                "single tokens is lost; use token_credit: {name: uniform}, or a policy loss per token "
                "(ppo_clip, gspo with token_level: true)"
            )


def check_several_updates(run: PhaseContext, loss: str) -> None:
    """Raise ConfigError for one update per batch, at which the ratio is 1 on every token."""
    if run.settings.ppo_epochs * run.settings.num_minibatches == 1:
        raise ConfigError(
            f"policy_loss: {loss!r} acts on the ratio of the policy to the one that the step started from, "
            "which is 1 with ppo_epochs: 1 and "
            "num_minibatches: 1; set one of them above 1 (num_minibatches: 4)"
        )


@register("ppo_clip")
@dataclass(frozen=True)
class PPOClip(PolicyLoss):
    """PPO's clipped loss: L = -min(r A, clip(r, 1 - low, 1 + high) A) with r = pi / pi_old per token.

    `high` > `low` is DAPO's clip-higher (arXiv:2503.14476, eq. 8). `dual_clip` c > 1 bounds the loss of
    tokens with A < 0 by -c A (Ye et al. 2020, arXiv:1912.09729, eq. 5); 0 switches it off. `off_policy`
    refuses to run with one update per batch: for presets that study the clip. Paper: Schulman et al. 2017,
    arXiv:1707.06347, eq. 7. Edge: on the old policy (r = 1) the gradient is that of REINFORCE.
    """

    unbounded = "high"  # .inf: the upper side is not clipped
    low: float = 0.2
    high: float = 0.2
    dual_clip: float = 0.0
    off_policy: bool = False

    def check(self, phase: PhaseContext) -> None:
        if self.off_policy:
            check_several_updates(phase, self.name)

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1 or self.high < 0:
            raise ValueError(
                f"low={self.low} must be in [0, 1] and high={self.high} at least 0: they are distances "
                "from a ratio of 1"
            )
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError(f"dual_clip={self.dual_clip} must be above 1 (3 is usual), or 0 for none")

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        dual_clip = self.dual_clip or None
        return functional.ppo_clip_loss(
            x.logp_BT, x.old_logp_BT, x.advantage_BT, x.mask_BT, self.low, self.high, dual_clip
        )


@register("dppo")
@dataclass(frozen=True)
class DPPO(PolicyLoss):
    """DPPO: L = -M sg(min(r, cap)) A log pi, with M = 0 on tokens whose probability has moved along A by more
    than `low` (A <= 0) or `high` (A > 0).

    `divergence` "tv": |pi - pi_old|; "kl": the KL of the two coins (token or not). `cap` 0 is no cap. Unlike
    a clip of the ratio it leaves rare tokens free and holds frequent ones. Paper: Qi et al. 2026 (DPPO),
    arXiv:2602.04879; dppo_tv and dppo_kl of verl-project/verl 1dda039b, whose examples have thresholds 0.15
    (tv) and 0.05 (kl). Edge: on the old policy it is REINFORCE.
    """

    divergence: Literal["tv", "kl"] = "tv"
    low: float = 0.15
    high: float = 0.15
    cap: float = 20.0

    def __post_init__(self) -> None:
        if min(self.low, self.high) <= 0 or self.cap < 0:
            raise ValueError(
                f"low={self.low} and high={self.high} must be above 0, cap={self.cap} not negative (0: none)"
            )

    def check(self, phase: PhaseContext) -> None:
        check_several_updates(phase, self.name)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        settings = (self.divergence, self.low, self.high, self.cap or None)
        return functional.dppo_loss(x.logp_BT, x.old_logp_BT, x.advantage_BT, x.mask_BT, *settings)


@register("policy_gradient")
@dataclass(frozen=True)
class PolicyGradient(PolicyLoss):
    """REINFORCE's loss: L = -A log pi, without ratio and clip.

    Biased once the policy has moved away from the sampler; meant for one optimizer step per batch.
    Paper: Williams 1992, doi:10.1007/BF00992696; GPG, arXiv:2504.02546, eq. 5.
    """

    is_plain: ClassVar[bool] = True

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        loss_BT, _ = functional.reinforce_loss(x.logp_BT, x.advantage_BT, x.mask_BT)
        return UnreducedLoss(loss_BT, {"ratio": x.log_ratio_BT.exp().detach()})


@register("zero_loss")
@dataclass(frozen=True)
class ZeroLoss(PolicyLoss):
    """L = 0, whatever the advantages: supervised phases, whose loss is that of the loss terms. vlrl
    original."""

    is_plain: ClassVar[bool] = True

    provides = (NO_POLICY_GRADIENT,)

    def check(self, phase: PhaseContext) -> None:
        if not any(term.coef for term in phase.objective.loss_terms.values()):
            raise ConfigError(
                f"policy_loss: {self.name!r} without a loss term leaves nothing to learn from; add "
                f"loss_terms: {{nll: {{name: nll}}}}, or use "
                "policy_loss: {name: ppo_clip}"
            )

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        return UnreducedLoss(x.logp_BT * 0.0, {})
