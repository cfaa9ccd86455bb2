"""KL as part of the reward, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl.methods.shape.kl_in_reward import token_kl
from vlrl.registry import register
from vlrl.stages import Credit
from vlrl.types import Group


@register("kl_return")
@dataclass(frozen=True)
class KLReturn(Credit):
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
