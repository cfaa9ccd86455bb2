"""Advantages that came per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.registry import ConfigError, register
from vlrl.stages import Credit
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("per_token")
@dataclass(frozen=True)
class PerTokenCredit(Credit):
    """A_{i,t} = `rollout.info["token_advantages"][t]`, as an advantage such as `gae` left it; A_i where it left none.

    Paper: vlrl original (the other half of arXiv:1506.02438 here).
    """

    def check(self, run: Run) -> None:
        if not run.advantage.writes_tokens:
            raise ConfigError(f"credit per_token hands out advantages per token, which advantage {run.advantage.name!r} does not write; use uniform")

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        return [list(r.info.get("token_advantages", [a] * len(r))) for a, r in zip(advantages, group, strict=True)]
