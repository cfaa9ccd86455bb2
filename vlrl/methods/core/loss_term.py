"""Loss terms: losses that are added to the policy loss with a coefficient.

kl             the KL to a reference policy
trust_region   TRPA's KL to the policy that the step started from
entropy_bonus  the entropy of the policy
nll            the supervised loss, maximum likelihood
dpo            direct preference optimisation on the pairs of a group
router_balance an even load of a mixture's experts
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl import functional
from vlrl.methods.common.demonstrations import GIVEN_TOKENS
from vlrl.methods.core.reward_shaping import KL_IN_REWARD, Estimator
from vlrl.methods.core.token_weight import after_given_tokens
from vlrl.methods.core.turn_advantage import episodes_of
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import LossTerm
from vlrl.services.lazy import nn, torch
from vlrl.types import LossInputs, UnreducedLoss


@register("kl")
@dataclass(frozen=True, kw_only=True)
class KL(LossTerm):
    """An estimate of KL(pi || ref) per token (nats), from u = log ref - log pi.

        k1 = -u,  k2 = u^2 / 2,  k3 = e^u - u - 1,  abs = |u|

    On-policy, the mean gradient of k2 is that of KL(pi || ref), that of k3 is KL(ref || pi)'s, and that of k1
    is zero. Paper: Schulman 2020, joschu.net/blog/kl-approx.html; as a loss: Shao et al. 2024,
    arXiv:2402.03300, eq. 4; gradients: Tang and Munos 2025, arXiv:2506.09477.

    Attributes:
        gradient: "direct" differentiates the estimate as it stands (GRPO, TRL); "k2" keeps the value of
            `estimator` with k2's gradient, which the bounds below do not remove (verl's "+" kinds);
            "importance" multiplies by pi / pi_old, whose gradient makes k1 and k3 unbiased too
            (DeepSeek-V3.2, arXiv:2512.02556, sec. 3.1).
        clamp_log: Bound on u (verl: 20); 0: none.
        clamp_value: Bound on the estimate (verl: 10); 0: none.
        ref: The tensor compared with.
    """

    estimator: Estimator = "k3"
    gradient: Literal["direct", "k2", "importance"] = "direct"
    ref: str = "ref_logp"
    clamp_log: float = 0.0
    clamp_value: float = 0.0

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.ref,)

    def check(self, phase: PhaseContext) -> None:
        if self.coef and self.estimator == "k1" and self.gradient == "direct":
            raise ConfigError(
                f"loss_terms: {self.name!r} with estimator k1 and gradient direct has a gradient of mean "
                "zero, so it only adds noise; use "
                "estimator k3 or k2, gradient k2 or importance, or the KL in the reward (reward_shaping: "
                "{kl: {name: kl_in_reward}})"
            )
        if self.coef and phase.has(KL_IN_REWARD):
            raise ConfigError(
                f"loss_terms: {self.name!r} and reward_shaping 'kl_in_reward' penalise the same divergence "
                "twice; drop one of them"
            )

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        return functional.kl_penalty(
            x.logp_BT,
            x[self.ref],
            x.mask_BT,
            kind=self.estimator,
            gradient=self.gradient,
            old_logp_BT=x.old_logp_BT,
            clamp_log=self.clamp_log,
            clamp_value=self.clamp_value,
        )


@register("trust_region")
@dataclass(frozen=True, kw_only=True)
class TrustRegion(KL):
    """TRPA's trust region: KL(pi || pi_old) per token, or its square root with `root`.

    Paper: Su et al. 2025 (TRPA), arXiv:2504.04524, eq. 13 (0.001, low-variance estimator). Edge: zero, also
    in gradient, on the old policy.
    """

    coef: float = 0.001
    ref: str = "old_logp"
    root: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        return ("old_logp",)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        out = super().__call__(x)
        loss_BT = (out.loss + 1e-12).sqrt() if self.root else out.loss
        return UnreducedLoss(loss_BT, {"kl_old": out.metrics["kl"]})


@register("entropy_bonus")
@dataclass(frozen=True, kw_only=True)
class EntropyBonus(LossTerm):
    """A3C's entropy bonus: L = -H(pi(. | s_t)) in nats. A positive `coef` raises entropy, a negative one
    lowers it.

    Paper: Mnih et al. 2016, arXiv:1602.01783, sec. 4.
    """

    coef: float = 0.001
    needs = ("entropy",)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        return UnreducedLoss(-x["entropy"], {"entropy": x["entropy"].detach()})


@register("nll")
@dataclass(frozen=True, kw_only=True)
class NLL(LossTerm):
    """The supervised loss: L = -log pi (nats per token), on all rollouts or on those of one `source` with a
    reward of at least `min_reward`.

    `correct` true: only on correct rollouts.
    `given` true: only on tokens that come from a demonstration that the rollout continues (GIVEN_TOKENS).
    vlrl original; `given`: SEELE, arXiv:2509.06923, eq. 10. Edge: zero where no rollout qualifies.
    """

    source: str = ""
    min_reward: float = float("-inf")
    correct: bool = False
    given: bool = False

    @property
    def requires(self) -> tuple[Capability, ...]:
        return (GIVEN_TOKENS,) if self.given else ()

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        keep = [
            (not self.source or r.source == self.source) and (r.correct or not self.correct)
            for r in x.batch.rollouts
        ]
        keep_B = torch.tensor(keep, device=x.logp_BT.device) & (x.reward_B >= self.min_reward)
        keep_BT = keep_B[:, None] & ~after_given_tokens(x) if self.given else keep_B[:, None]
        nll_BT = torch.where(keep_BT, -x.logp_BT, 0.0)
        return UnreducedLoss(nll_BT, {"nll": nll_BT.detach()})


@register("dpo")
@dataclass(frozen=True, kw_only=True)
class DPO(LossTerm):
    """Direct preference optimisation: L = -log sigma(beta (margin of w - margin of l)) over the pairs (w, l)
    of a group.

        L = mean over pairs of -log sigma( beta [ (log pi(w) - log ref(w)) - (log pi(l) - log ref(l)) ] )

    log pi(y) sums the trained tokens of an episode. `pairs`: "correct" takes every correct episode with every
    wrong one, "best" the highest reward with the lowest. Every rollout carries its group's mean, so that the
    step's loss is the mean over rollouts. Both episodes of a pair should have the same prompt. Paper:
    Rafailov et al. 2023, arXiv:2305.18290, eq. 7. Edge: a group without a pair (all alike) adds 0. With
    policy_loss zero_loss it is the whole objective. Logs the margin (nats, times beta) and the share of pairs
    that are ranked right. Shapes: (B,).
    """

    beta: float = 0.1
    pairs: Literal["correct", "best"] = "correct"
    needs = ("ref_logp",)

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ValueError(f"beta={self.beta} must be above 0")

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        ratio_B = torch.where(x.mask_BT > 0, x.logp_BT - x["ref_logp"], 0.0).sum(-1)
        place = {id(rollout): b for b, rollout in enumerate(x.batch.rollouts)}
        rows, margins = [], []
        for group in x.batch.groups:
            episodes = episodes_of(group)
            values = [ratio_B[[place[id(rollout)] for rollout in episode]].sum() for episode in episodes]
            found = [
                self.beta * (values[good] - values[bad])
                for good, bad in self.chosen([(e[-1].correct, e[-1].reward) for e in episodes])
            ]
            loss = -nn.functional.logsigmoid(torch.stack(found)).mean() if found else 0.0 * ratio_B.sum()
            rows += [loss] * len(group)
            margins += [margin.detach() for margin in found]
        told = torch.stack(margins) if margins else ratio_B.detach()[:0]
        return UnreducedLoss(torch.stack(rows), {"dpo/margin": told, "dpo/ranked_right": (told > 0).float()})

    def chosen(self, episodes: Sequence[tuple[bool, float]]) -> list[tuple[int, int]]:
        """(better, worse) places among episodes given as (correct, reward)."""
        if self.pairs == "correct":
            right, wrong = (
                [place for place, (correct, _) in enumerate(episodes) if correct is wanted]
                for wanted in (True, False)
            )
            return [(good, bad) for good in right for bad in wrong]
        rewards = [reward for _, reward in episodes]
        best, worst = rewards.index(max(rewards)), rewards.index(min(rewards))
        return [(best, worst)] if rewards[best] > rewards[worst] else []


@register("router_balance")
@dataclass(frozen=True, kw_only=True)
class RouterBalance(LossTerm):
    """The balancing loss of a mixture of experts: E / K sum_e f_e P_e, the mean over layers, of all tokens of
    a micro-batch.

    f_e is the number of choices of expert e per token (of K), P_e its mean probability under the router,
    which alone has a gradient; an even load gives 1. Paper: Fedus et al. 2021, arXiv:2101.03961, eq. 4 to 6;
    divided by K as in Megatron-LM, which adds its layers up: its coefficient there is this one over the
    number of layers. Logs the loss and the busiest expert's load. Raises ConfigError for a model without
    routers that can be read. Shapes: (B, T).
    """

    coef: float = 0.001
    needs = ("expert_load",)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        loss_BT, busiest_BT = x["expert_load"].unbind(-1)
        return UnreducedLoss(
            loss_BT, {"router/balance": loss_BT.detach(), "router/busiest": busiest_BT.detach()}
        )
