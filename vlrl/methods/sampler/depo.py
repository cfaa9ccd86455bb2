"""Prompts with little left to explore are passed over before anything is sampled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlrl.methods.callback.depo import KEY
from vlrl.methods.sampler.shuffle import Shuffle
from vlrl.registry import ConfigError, register
from vlrl.types import Row

if TYPE_CHECKING:
    from vlrl.run import Run


def retained(rows: Sequence[Row], history: Mapping[str, Mapping[str, Any]], n: int, under: int) -> list[Row]:
    """n of `rows`: those never visited, then the most explorable, fewer visits first among equals; `under` places go to the least visited others."""

    def rank(row: Row) -> tuple[float, int]:
        memory = history.get(row.id, {}).get(KEY)
        return (-sum(memory["last"]) / len(memory["last"]), memory["visits"]) if memory else (-math.inf, 0)

    ordered = sorted(rows, key=rank)
    kept, others = ordered[: n - under], ordered[n - under :]
    return kept + sorted(others, key=lambda row: (rank(row)[1], rank(row)[0]))[: n - len(kept)]


@register("explorable")
@dataclass(frozen=True)
class Explorable(Shuffle):
    """n rows of the next ceil(n / share), share = clip(first - fall * epoch, least, 1): the most explorable by the mean of their last visits.

    In the first epoch all rows are taken; later ones that were never visited come before all others. `under` rows of a call are the least visited of
    those that would be passed over.
    Paper: Tang et al. 2025 (DEPO), arXiv:2509.01321, online selection and replay of under-explored samples; checked against rollout_purning.py of the
    release (least 0.4; there `under` fills the batch up to a multiple of the devices; first and fall are options whose values were not found).
    Deviates: the batch keeps its size and more rows are looked at, where the release's batches shrink. Reads what callback `explorability` keeps,
    equal on all ranks; it must be among the run's callbacks. State: the position.
    """

    first: float = 1.0
    fall: float = 0.1
    least: float = 0.4
    under: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.least <= 1 or self.fall < 0 or self.under < 0:
            raise ConfigError(f"sampler: least={self.least} must be in (0, 1], fall={self.fall} and under={self.under} not negative")

    def check(self, run: Run) -> None:
        super().check(run)
        if not any(callback.name == "explorability" for callback in run.callbacks.values()):
            raise ConfigError("sampler explorable reads what callback explorability keeps; add callbacks: {explorability: {name: explorability}}")

    def setup(self, run: Run) -> None:
        super().setup(run)
        self._state["history"] = run.history

    def share(self) -> float:
        """Of the rows looked at, how many are taken now."""
        epoch = self._state["position"] // len(self._state["mixture"])
        return min(max(self.first - self.fall * epoch, self.least), 1.0) if epoch else 1.0

    def __call__(self, n: int) -> list[Row]:
        rows = super().__call__(math.ceil(n / self.share() - 1e-9))
        return retained(rows, self._state["history"], n, min(self.under, n))

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "data/share": self.share()}
