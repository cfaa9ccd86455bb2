"""KL as part of the reward, token by token.

Advantages that came per token.

The same advantage for every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vlrl.methods.core.reward_shaping import token_kl
from vlrl.registry import ConfigError, register
from vlrl.stages import TokenCredit
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("kl_return")
@dataclass(frozen=True)
class KLReturn(TokenCredit):
    """A_{i,t} = A_i - beta sum_{s >= t} k(s): each token answers for the KL from itself on.

    Paper: Hu 2025 (REINFORCE++), arXiv:2501.03262, eq. 3-4 (k1).  Deviates: added after the advantages are normalised.
    """

    beta: float = 0.01
    kind: Literal["k1", "k2", "k3"] = "k1"
    needs = ("ref_logp",)

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        result = []
        for a, rollout in zip(advantages, group, strict=True):
            total, values = 0.0, []
            for kl in reversed(token_kl(rollout, self.kind)):
                total += kl
                values.append(a - self.beta * total)
            result.append(values[::-1])
        return result


@register("per_token")
@dataclass(frozen=True)
class PerToken(TokenCredit):
    """A_{i,t} = `rollout.info["token_advantages"][t]`, as an advantage such as `gae` left it; A_i where it left none.

    Paper: vlrl original (the other half of arXiv:1506.02438 here).
    """

    def check(self, run: RunContext) -> None:
        if not run.advantage.writes_tokens:
            raise ConfigError(f"credit per_token hands out advantages per token, which advantage {run.advantage.name!r} does not write; use uniform")

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        return [list(r.info.get("token_advantages", [a] * len(r))) for a, r in zip(advantages, group, strict=True)]


@register("uniform")
@dataclass(frozen=True)
class Uniform(TokenCredit):
    """A_{i,t} = A_i.

    Paper: Shao et al. 2024, arXiv:2402.03300, sec. 4.1.2 (outcome supervision).
    """

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        return [[a] * len(rollout) for a, rollout in zip(advantages, group, strict=True)]
