"""Advantages per token, for the plug-ins that write them where credit `per_token` reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vlrl.methods.advantage.grpo import mean
from vlrl.registry import ConfigError
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


def check_credit(run: Run, name: str) -> None:
    """Refuse a credit that would overwrite what advantage `name` writes."""
    if run.credit.name != "per_token":
        raise ConfigError(
            f"advantage {name} writes advantages per token, which credit {run.credit.name!r} would overwrite; use credit: {{name: per_token}}"
        )


def whiten(rows: Sequence[list[float]], eps: float = 1e-8) -> None:
    """Mean 0 and variance 1 over all tokens, in place. Tokens that are all alike become 0."""
    flat = [a for row in rows for a in row]
    centre = mean(flat)
    spread = math.sqrt(mean([(a - centre) ** 2 for a in flat])) + eps
    for row in rows:
        row[:] = [(a - centre) / spread if a != centre else 0.0 for a in row]


def hand_over(groups: Sequence[Group], rows: Sequence[list[float]]) -> list[list[float]]:
    """Leave one row per rollout, in order, in `rollout.info["token_advantages"]`; the rollout's own number is its mean."""
    left = iter(rows)
    for group in groups:
        for rollout in group:
            rollout.info["token_advantages"] = next(left)
    return [[mean(rollout.info["token_advantages"]) for rollout in group] for group in groups]
