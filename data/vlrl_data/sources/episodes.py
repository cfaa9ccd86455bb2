"""Rows for environments that bring their own tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.registry import register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource


@register("episodes")
@dataclass(frozen=True, kw_only=True)
class Episodes(GeneratedSource):
    """Rows of an environment that makes its own tasks, such as a game: the same `question` for each, and a
    seed of its own in `meta["seed"]`.

    vlrl original. An environment's `reset` takes that seed, so that a row is one task, the same for all
    rollouts of its group and in every epoch. The source brings the reward `environment_return`; without
    `played` it brings none, for a policy that plays no episode itself, such as a planner. Held-out rows have
    other seeds than training rows.
    """

    question: str = "Play."
    task: str = "episodes"
    played: bool = True

    @property
    def own_rewards(self) -> Mapping[str, Mapping[str, Any]]:
        """The reward of these rows."""
        if not self.played:
            return {}
        return {"environment_return": {"name": "environment_return", "tasks": [self.task]}}

    def row(self, index: int) -> Row:
        return Row(
            self.id(index), self.question, task=self.task, meta={"seed": self.rng(index).getrandbits(31)}
        )
