"""Token credits: how a rollout's advantage is spread over its tokens.

uniform     the same advantage for every token
per_token   advantages that the estimator wrote per token
kl_return   REINFORCE++'s token KL: every token pays for the divergence from itself on
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.core.reward_shaping import Estimator, token_kl
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, TokenCredit
from vlrl.types import Group

UNIFORM_CREDIT = Capability("uniform_credit", hint="token_credit: {name: uniform}")
PER_TOKEN_CREDIT = Capability("per_token_credit", hint="token_credit: {name: per_token}")


def check_token_credit(run: PhaseContext, advantage: str) -> None:
    """Raise ConfigError for a token credit that would overwrite the TOKEN_ADVANTAGES that an estimator
    writes."""
    if not run.has(PER_TOKEN_CREDIT):
        raise ConfigError(
            f"advantage: {advantage!r} writes advantages per token, which token_credit "
            f"{run.token_credit.name!r} would overwrite; "
            f"use {PER_TOKEN_CREDIT.hint}"
        )


@register("uniform")
@dataclass(frozen=True)
class Uniform(TokenCredit):
    """Outcome supervision: A_{i,t} = A_i.

    Paper: Shao et al. 2024, arXiv:2402.03300, sec. 4.1.2.
    """

    provides = (UNIFORM_CREDIT,)

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        return [[a] * len(rollout) for a, rollout in zip(advantages, group, strict=True)]


@register("per_token")
@dataclass(frozen=True)
class PerToken(TokenCredit):
    """A_{i,t} = TOKEN_ADVANTAGES[rollout][t], which an estimator such as `gae` writes; A_i for a rollout
    without them.

    vlrl original (the second half of GAE, arXiv:1506.02438, as it is divided here).
    """

    provides = (PER_TOKEN_CREDIT,)
    requires = (TOKEN_ADVANTAGES,)

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        return [
            list(TOKEN_ADVANTAGES.get(rollout, [a] * len(rollout)))
            for a, rollout in zip(advantages, group, strict=True)
        ]


@register("kl_return")
@dataclass(frozen=True)
class KLReturn(TokenCredit):
    """REINFORCE++'s KL to the reference as a token reward: A_{i,t} = A_i - beta sum_{s >= t} k(s).

    Paper: Hu 2025 (REINFORCE++), arXiv:2501.03262, eq. 3-4 (k1). Deviates: added after the advantages are
    normalised; reward shaping `kl_token_reward` adds it before, as the paper does.
    """

    beta: float = 0.01
    estimator: Estimator = "k1"
    needs = ("ref_logp",)

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        result = []
        for a, rollout in zip(advantages, group, strict=True):
            total, values = 0.0, []
            for kl in reversed(token_kl(rollout, self.estimator)):
                total += kl
                values.append(a - self.beta * total)
            result.append(values[::-1])
        return result
