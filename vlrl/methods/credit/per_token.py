"""Advantages that came per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import Credit
from vlrl.types import Group


@register("per_token")
@dataclass(frozen=True)
class PerTokenCredit(Credit):
    """A_{i,t} = `rollout.info["token_advantages"][t]`, as an advantage such as `gae` left it; A_i where it left none.

    Paper: vlrl original (the other half of arXiv:1506.02438 here).
    """

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        return [list(r.info.get("token_advantages", [a] * len(r))) for a, r in zip(advantages, group, strict=True)]
