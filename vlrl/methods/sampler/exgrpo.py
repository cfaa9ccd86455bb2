"""Half new prompts, half such as were solved now and then before."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlrl.methods.sampler._pool import draw, remember
from vlrl.methods.sampler.shuffle import Shuffle
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Row

if TYPE_CHECKING:
    from vlrl.run import Run

LEARNED: dict[str, Any] = {"pool": {}, "retired": {}, "open": False, "drawn": 0}


@register("experience")
@dataclass(frozen=True)
class Experience(Shuffle):
    """floor(ratio * n) rows from a pool of prompts with lower < right rollouts <= upper, the others as `shuffle` gives them.

    A bucket (prompts with m right rollouts when last seen) is drawn with weight exp(-(m - G/2)^2 / 2), a prompt within it uniformly, without
    replacement. The pool keeps a prompt's right rollouts, `keep` at most, no text twice; prompts solved by all rollouts leave it for good, prompts
    solved by none do not enter. It opens for good once a step's mean accuracy exceeds `start`. Strategy `experience` puts what is kept to use.
    Paper: Zhan et al. 2025 (ExGRPO), arXiv:2510.02245, sec. 4.1; checked against copies of the released experience_* and weighted_bucket_sampler
    files: ratio 0.5, start 0.35, bounds 0 and 7 of 8, sigma 1. Deviates: `keep` is ours (the release keeps all); log-probs are the engine's.
    Right means a reward above `threshold`. All ranks learn from all groups, so their pools are equal. State: the pool and the position.
    """

    ratio: float = 0.5
    start: float = 0.35
    lower: int = 0
    upper: int = 7
    keep: int = 16
    threshold: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ratio < 1 or self.keep < 1 or not 0 <= self.lower < self.upper:
            raise ConfigError(
                f"sampler: ratio={self.ratio} must be in [0, 1), keep={self.keep} at least 1, and 0 <= lower={self.lower} < upper={self.upper}"
            )

    def setup(self, run: Run) -> None:
        super().setup(run)
        self._state.update({**deepcopy(LEARNED), **self._state}, seed=run.seed, size=run.group_size, served={}, replayed=set())

    def __call__(self, n: int) -> list[Row]:
        chosen = self.draw(int(self.ratio * n)) if self._state["open"] else []
        self._state["replayed"] = set(chosen)
        rows = super().__call__(n - len(chosen))
        pool, mixture = self._state["pool"], self._state["mixture"]
        return rows + [mixture.row(pool[key]["position"]) for key in chosen]

    def _try(self, position: int) -> Row | None:
        row = super()._try(position)
        if row is not None:
            self._state["served"][row.id] = position
        return row

    def draw(self, n: int) -> list[str]:
        """n row ids of the pool, or all that it has."""
        chosen = draw(self._state["pool"], n, self._state["size"], self._state["seed"], self._state["drawn"])
        self._state["drawn"] += len(chosen)
        return chosen

    def kept(self, row: Row) -> list[dict[str, Any]]:
        """The stored rollouts of a row that was drawn from the pool in the present call; else nothing."""
        return self._state["pool"][row.id]["rollouts"] if row.id in self._state["replayed"] and row.id in self._state["pool"] else []

    def observe(self, groups: Sequence[Group]) -> None:
        state = self._state
        own = [rollout.reward > self.threshold for group in groups for rollout in group if rollout.source == "policy"]
        if state["open"]:
            for group in groups:
                self._learn(group)
        state["open"] = state["open"] or (bool(own) and sum(own) / len(own) > self.start)
        state["served"].clear()

    def _learn(self, group: Group) -> None:
        key, pool = group.row.id, self._state["pool"]
        right = [rollout for rollout in group if rollout.reward > self.threshold]
        if len(group) and len(right) == len(group):
            pool.pop(key, None)
            self._state["retired"][key] = True
        if key in self._state["retired"] or not self.lower < len(right) <= self.upper:
            return
        if key not in pool and key not in self._state["served"]:
            return  # a row of another making (a mirrored one): there is no way back to it
        entry = pool.setdefault(key, {"position": self._state["served"].get(key), "rollouts": []})
        entry["right"] = len(right)
        remember(entry["rollouts"], right, self.keep)
        if not entry["rollouts"]:
            del pool[key]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **{key: self._state[key] for key in LEARNED if key in self._state}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._state.update({key: state[key] for key in LEARNED if key in state})

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "data/pool": float(len(self._state["pool"])), "data/retired": float(len(self._state["retired"]))}
