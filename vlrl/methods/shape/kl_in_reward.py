"""KL as part of the reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl.registry import register
from vlrl.stages import Shape
from vlrl.types import Group, Rollout


def token_kl(rollout: Rollout, kind: str) -> list[float]:
    """The estimate of KL(pi_old || pi_ref) at every trained token (nats); 0 at the others."""
    table = {"k1": lambda u: -u, "k2": lambda u: u * u / 2, "k3": lambda u: math.expm1(u) - u}
    logs = [ref - old for ref, old in zip(rollout.signals["ref_logp"], rollout.signals["old_logp"], strict=True)]
    mask: Sequence[bool] = rollout.loss_mask or [True] * len(rollout)
    return [table[kind](u) if m else 0.0 for u, m in zip(logs, mask)]


@register("kl_in_reward")
@dataclass(frozen=True)
class KLInReward(Shape):
    """r - beta sum_t k(t): the KL to the reference, estimated on the rollout, as a penalty of the whole.

    Paper: Ahmadian et al. 2024, arXiv:2402.14740, eq. 3 (k1).  With `kind` k1 its policy gradient is that of the KL; with k2 or k3 it isn't.
    """

    beta: float = 0.05
    kind: Literal["k1", "k2", "k3"] = "k1"
    needs = ("ref_logp",)

    def __call__(self, group: Group) -> list[float]:
        return [rollout.reward - self.beta * math.fsum(token_kl(rollout, self.kind)) for rollout in group]
