"""Levels of difficulty, one after the other: the next begins when the last one is mastered."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.registry import ConfigError, register
from vlrl.stages import Sampler
from vlrl.types import Group, Row

from ._order import Mixture

if TYPE_CHECKING:
    from vlrl.run import Run


def score(group: Group, slot: str) -> float:
    """Mean reward of a group's rollouts: of one slot (0 where it did not score), or the total."""
    values = [rollout.rewards.get(slot, 0.0) if slot else rollout.reward for rollout in group]
    return sum(values) / len(values) if values else 0.0


@register("levels")
@dataclass(frozen=True)
class Levels(Sampler):
    """level + 1 when mean reward over the level's last `window` groups >= threshold, or after `most` groups of it (0: never).

    Paper: SATURN, arXiv:2505.16368, sec. 3.4 (difficulty rises when pass@1 at the current level passes a threshold); Ariadne, arXiv:2511.00710
    (mazes grow with accuracy); Jigsaw-R1, arXiv:2505.23590 (stages after so many prompts: threshold above 1, `most` set).
    Deviates: accuracy is that of the training groups, not of a held-out set of the level. The sources under `data.train` are the levels, in their
    order. `slot` names the reward that is looked at (default: the total). `review`: the share of rows drawn from mastered levels.
    Edge: the last level stays. Reads `run.rows` (by source). State: level, recent scores, positions.
    """

    threshold: float = 0.75
    window: int = 32
    most: int = 0
    slot: str = ""
    review: float = 0.0
    _state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.window < 1 or self.most < 0 or not 0 <= self.review < 1:
            raise ConfigError(f"sampler: window={self.window} must be at least 1, most={self.most} at least 0, review={self.review} in [0, 1)")

    def setup(self, run: Run) -> None:
        mixtures = [Mixture({name: rows}, {}, run.seed) for name, rows in run.rows.items()]
        start = {"level": 0, "drawn": 0, "seen": 0, "recent": [], "positions": [0] * len(mixtures)}
        self._state.update({key: value for key, value in start.items() if key not in self._state})
        self._state.update(mixtures=mixtures, names=list(run.rows), seed=run.seed, served={})

    def __call__(self, n: int) -> list[Row]:
        return [self._next() for _ in range(n)]

    def _next(self) -> Row:
        state = self._state
        rng = random.Random(f"{state['seed']}|levels|{state['drawn']}")
        state["drawn"] += 1
        level = state["level"]
        if level and rng.random() < self.review:
            level = rng.randrange(level)
        row = state["mixtures"][level].row(state["positions"][level])
        state["positions"][level] += 1
        state["served"][row.id] = level
        return row

    def observe(self, groups: Sequence[Group]) -> None:
        state = self._state
        own = [score(group, self.slot) for group in groups if state["served"].get(group.row.id) == state["level"]]
        state["served"].clear()
        state["seen"] += len(own)
        state["recent"] = (state["recent"] + own)[-self.window :]
        full = len(state["recent"]) == self.window
        mastered = full and sum(state["recent"]) / self.window >= self.threshold
        if state["level"] + 1 < len(state["mixtures"]) and (mastered or 0 < self.most <= state["seen"]):
            state.update(level=state["level"] + 1, seen=0, recent=[])

    def state_dict(self) -> dict[str, Any]:
        return {key: self._state[key] for key in ("level", "drawn", "seen", "recent", "positions") if key in self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state.update({key: list(value) if isinstance(value, list) else value for key, value in state.items()})

    def metrics(self) -> dict[str, float]:
        recent = self._state["recent"]
        return {"data/level": float(self._state["level"]), "data/level_score": sum(recent) / len(recent) if recent else 0.0}
