"""B-Coder: a Q-function that starts as the language model's logits, trained on programs of people and of the
policy by a conservative Bellman operator.

    b_coder           advantage: the temporal difference of Q
    b_coder.td        policy loss: its square
    b_coder.best      aux tensor: the largest log-prob
    b_coder.old_lead  aux tensor: logit of the token less the largest logit, at the start of the step
    b_coder.caution   aux tensor: the same of the token that the reference would take
    b_coder.ranking   metric: whether the learned values rank a right program first

Q(s, a) = V(s) + alpha (l(s, a) - max_a l(s, a)): its greedy action is the language model's, and max_a Q = V.

Paper: Yu et al. 2024 (B-Coder), arXiv:2310.03173, sec. 4; compared with its text. No released code was found.
Left out: the losses on programs of people (eq. 8, 17); see configs/methods/b_coder.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from vlrl import functional
from vlrl.methods.core.advantage import as_rows, padded, reward_tensors, set_token_advantages
from vlrl.methods.core.critic import RETURNS, VALUE_CRITIC
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, AdvantageEstimator, AuxTensor, Metric, PolicyLoss
from vlrl.plugins.views import PolicyView
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, LossInputs, Rollout, TokenBatch, UnreducedLoss


def lead(logits_NV: Tensor, ids_N: Tensor) -> Tensor:
    """l(s, a) - max_a l(s, a) <= 0 of the tokens `ids_N`: (N, V) to (N,)."""
    return logits_NV.gather(1, ids_N[:, None])[:, 0] - logits_NV.amax(1)


@register("b_coder.best")
@dataclass(frozen=True, kw_only=True)
class BCoderBest(AuxTensor):
    """max_a log pi(a | s_t): the log-prob of a token less this is its lead, its advantage before alpha.

    Paper: B-Coder, arXiv:2310.03173, sec. 4.2. Shapes: (N, V) to (N,), with gradient.
    """

    in_forward = True

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        return logits_NV.amax(1) - logits_NV.logsumexp(1)


@register("b_coder.old_lead")
@dataclass(frozen=True, kw_only=True)
class BCoderOldLead(AuxTensor):
    """l(s_t, a_t) - max_a l(s_t, a) <= 0 of the policy at the start of the step, without gradient.

    Paper: B-Coder, arXiv:2310.03173, sec. 4.2. Shapes: (B, T).
    """

    at_start = True

    def __call__(self, policy: PolicyView, batch: TokenBatch) -> Tensor:
        with torch.no_grad():
            found = policy.forward(batch, [BCoderBest()])
        return found["logp"] - found["b_coder.best"]


@dataclass(frozen=True)
class Chosen(AuxTensor):
    """The largest logit's token; `chunks` collects them as the forward pass makes them."""

    name = "chosen"
    in_forward = True
    chunks: list[Tensor] = field(default_factory=list)

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        self.chunks.append(logits_NV.argmax(1))
        return self.chunks[-1].float()


@dataclass(frozen=True)
class LeadOfChosen(AuxTensor):
    """The lead of the tokens that `Chosen` collected in a pass over the same batch."""

    name = "lead_of_chosen"
    in_forward = True
    chunks: Iterator[Tensor]

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        return lead(logits_NV, next(self.chunks))


@register("b_coder.caution")
@dataclass(frozen=True, kw_only=True)
class BCoderCaution(AuxTensor):
    """l(s_t, a') - max_a l(s_t, a) <= 0 with a' = argmax_a q(s_t, a), q the reference: what the conservative
    Bellman operator takes off max_a Q, before alpha. 0 where the policy would take the same token.

    Paper: B-Coder, arXiv:2310.03173, eq. 14. The reference is the policy at the start of the run or phase.
    Shapes: (B, T), without gradient. Costs a forward pass of the reference and one of the policy.
    """

    at_start = True

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        run.policy.keep_reference()

    def __call__(self, policy: PolicyView, batch: TokenBatch) -> Tensor:
        chosen = Chosen()
        with torch.no_grad():
            with policy.reference() as reference:
                reference.forward(batch, [chosen])
            return policy.forward(batch, [LeadOfChosen(iter(chosen.chunks))])["lead_of_chosen"]


@register("b_coder")
@dataclass(frozen=True)
class BCoder(AdvantageEstimator):
    """B-Coder's temporal difference under the conservative Bellman operator, for token credit `per_token`.

        delta_t = r_t + gamma Q(s_{t+1}, argmax_a q(s_{t+1}, a)) - Q(s_t, a_t),  Q = V + alpha lead
                = r_t + gamma (V_{t+1} + alpha caution_{t+1}) - V_t - alpha lead_t

    r is the reward, at the last trained token; Q of the end is 0. Writes TOKEN_ADVANTAGES (delta) and RETURNS
    (V + delta, the critic's targets). `conservative` false is the usual operator, max_a Q = V (eq. 13).
    Paper: arXiv:2310.03173, eq. 7, 14 and 15; alpha is 1 there (app. H), gamma is not stated. Edge: programs
    of other writers count alike, because the operator needs no sampling ratio.
    """

    alpha: float = 0.1
    gamma: float = 1.0
    conservative: bool = True
    provides = (TOKEN_ADVANTAGES, RETURNS)

    def __post_init__(self) -> None:
        if self.alpha <= 0 or not 0 < self.gamma <= 1:
            raise ConfigError(
                f"advantage: alpha={self.alpha} must be above 0 and gamma={self.gamma} in (0, 1]"
            )

    @property
    def needs(self) -> tuple[str, ...]:
        return ("value", "b_coder.old_lead", *(("b_coder.caution",) if self.conservative else ()))

    @property
    def requires(self) -> tuple[Capability, ...]:
        return (VALUE_CRITIC,)

    def check(self, phase: PhaseContext) -> None:
        check_token_credit(phase, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        rollouts = [rollout for group in groups for rollout in group]
        if not rollouts:
            return [[] for _ in groups]
        reward_BT, mask_BT = reward_tensors(groups, False)
        value_BT, lead_BT = (
            padded([rollout.signals[name] for rollout in rollouts]) for name in ("value", "b_coder.old_lead")
        )
        next_BT = value_BT
        if self.conservative:
            caution_BT = padded([rollout.signals["b_coder.caution"] for rollout in rollouts])
            next_BT = value_BT + self.alpha * caution_BT
        step_BT, _ = functional.gae(reward_BT, next_BT, mask_BT, self.gamma, 0.0)  # r + gamma next - next_t
        delta_BT = (step_BT + next_BT - value_BT - self.alpha * lead_BT) * mask_BT
        for rollout, target in zip(rollouts, as_rows(value_BT + delta_BT, groups), strict=True):
            RETURNS.set(rollout, target)
        return set_token_advantages(groups, as_rows(delta_BT, groups))


@register("b_coder.td")
@dataclass(frozen=True)
class BCoderTd(PolicyLoss):
    """B-Coder's loss: (Q_theta(s_t, a_t) - sg(target_t))^2 = (alpha (lead - old_lead) - delta)^2, with lead =
    log pi(a_t) - max_a log pi(a).

    delta: the advantages of `b_coder`, whose `alpha` this one's must be. V is trained by callback `critic`
    towards the same target. Paper: arXiv:2310.03173, eq. 15. Edge: the first update's gradient is -2 alpha
    delta grad lead. Shapes: (B, T).
    """

    alpha: float = 0.1
    needs = ("b_coder.best", "b_coder.old_lead")
    zero_without_advantage = False

    def check(self, phase: PhaseContext) -> None:
        alpha = getattr(phase.advantage, "alpha", None)
        if not isinstance(phase.advantage, BCoder) or alpha != self.alpha:
            raise ConfigError(
                f"policy_loss: 'b_coder.td' squares the differences of advantage 'b_coder' with "
                f"alpha={self.alpha}, and the advantage is {phase.advantage.name!r}"
                + (f" with alpha={alpha}" if alpha is not None else "")
                + f"; use advantage: {{name: b_coder, alpha: {self.alpha}}}"
            )

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        moved_BT = self.alpha * (x.logp_BT - x["b_coder.best"] - x["b_coder.old_lead"].detach())
        return UnreducedLoss(
            (moved_BT - x.advantage_BT).square(), {"td_error": (moved_BT - x.advantage_BT).detach().abs()}
        )


def program_score(rollout: Rollout, alpha: float) -> float:
    """sum_t [Q(s_t, a_t) - V(s_{t+1})] = V(s_0) + alpha sum_t lead_t: the reward that the learned values give
    a whole program (the end's V is 0)."""
    trained = [t for t, on in enumerate(rollout.trained_mask) if on]
    leads = sum(rollout.signals["b_coder.old_lead"][t] for t in trained)
    return float(rollout.signals["value"][trained[0]] + alpha * leads) if trained else float("-inf")


@register("b_coder.ranking")
@dataclass(frozen=True, kw_only=True)
class BCoderRanking(Metric):
    """B-Coder's dual use of Q: candidates of a prompt ranked by the reward that the values give them
    (`program_score`).

    ranked_first: share of the groups whose first one of the policy's own candidates is right; chance: share
    of right candidates; caution: mean over trained tokens of `b_coder.caution`. Paper: arXiv:2310.03173, sec.
    4.5, eq. 19. Edge: groups without two own candidates are not ranked.
    """

    alpha: float = 0.1

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        first, chance = [], []
        for group in groups:
            own = [r for r in group if r.source == "policy" and "b_coder.old_lead" in r.signals]
            if len(own) > 1:
                best = max(own, key=lambda rollout: program_score(rollout, self.alpha))
                first.append(float(best.correct))
                chance.append(sum(rollout.correct for rollout in own) / len(own))
        taken = [
            value
            for group in groups
            for rollout in group
            for value, on in zip(rollout.signals.get("b_coder.caution", ()), rollout.trained_mask)
            if on
        ]
        caution = {"caution": sum(taken) / len(taken)} if taken else {}
        if not first:
            return caution
        return caution | {"ranked_first": sum(first) / len(first), "chance": sum(chance) / len(chance)}
