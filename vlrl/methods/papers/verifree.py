"""Advantage on the reasoning, likelihood on the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlrl.registry import ConfigError, register
from vlrl.stages import TokenCredit
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("verifree")
@dataclass(frozen=True)
class VeriFree(TokenCredit):
    """A_{i,t} = A_i on the reasoning, R_i on the tokens of the reference that shape `reference_probability` put in (with `splice`).

    With a surrogate whose gradient is A grad log pi this is  A_i grad log pi(z_i | x) + R_i grad log pi(y* | x, z_i), R_i the rollout's reward.
    Paper: Zhou et al. 2025 (VeriFree), arXiv:2505.21493; released script: sft_coef_source reward. Edge: a rollout without a reference: A_i.
    """

    def check(self, run: RunContext) -> None:
        shapes: list[Any] = list(run.reward_shaping.values())
        if not any(getattr(shape, "splice", False) for shape in shapes):
            raise ConfigError(
                "credit verifree trains on references that no shape puts in; use shape: {r: {name: reference_probability, splice: true}}"
            )

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        result = []
        for a, rollout in zip(advantages, group, strict=True):
            start, end = rollout.info.get("reference_at", (len(rollout), len(rollout)))
            result.append([a] * start + [rollout.reward] * (end - start) + [a] * (len(rollout) - end))
        return result
