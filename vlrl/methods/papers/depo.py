"""How much a prompt has left to explore, from what the policy wrote on it.

Prompts with little left to explore are passed over before anything is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.methods.common.correctness import accuracies, slots_of
from vlrl.methods.core.prompt_sampler import Shuffle
from vlrl.registry import ConfigError, register
from vlrl.stages import Callback
from vlrl.types import Group, Row

if TYPE_CHECKING:
    from vlrl.context import RunContext

KEY = "explorability"


def explorability(right: Sequence[bool], entropies: Sequence[float], ratio: float) -> float:
    """sum_i |A_i| H_i over the right rollouts and those wrong ones with H_i <= ratio (mean H of the right); A = (c - mean c) / std c, c in {0, 1}.

    0 where all are right or all are wrong.
    """
    n, good = len(right), [h for ok, h in zip(right, entropies) if ok]
    if not 0 < len(good) < n:
        return 0.0
    mean = len(good) / n
    std = math.sqrt(mean * (1 - mean))
    bound = ratio * sum(good) / len(good)
    bad = [h for ok, h in zip(right, entropies) if not ok and h <= bound]
    return ((1 - mean) * sum(good) + mean * sum(bad)) / std


@register("depo.explorability")
@dataclass(frozen=True)
class DepoExplorability(Callback):
    """The explorability of each visit of a row joins its memory in the run's history: sum_i |A_i| H_i, H_i the mean entropy of rollout i (nats).

    Wrong rollouts whose entropy is above `ratio` times the mean of the right ones count nothing. The last `keep` visits are kept, and their number.
    Paper: Tang et al. 2025 (DEPO), arXiv:2509.01321; checked against rollout_purning.py of the release (its numbers are options whose values were not
    found; `ratio` and `keep` are ours). Deviates: a group in which all are wrong counts 0 there too, for none has an entropy below 0. Right is an
    accuracy above `threshold`. Groups that a gate refused are not seen. Every rank keeps what all ranks found. Sampler `explorable` reads it.
    """

    ratio: float = 2.0
    keep: int = 3
    slot: str = ""
    threshold: float = 0.5
    needs = ("entropy",)
    slots: list[str] = field(init=False, default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.keep < 1 or self.ratio <= 0:
            raise ConfigError(f"callbacks: explorability needs keep={self.keep} of at least 1 and ratio={self.ratio} above 0")

    def setup(self, run: RunContext) -> None:
        self.slots[:] = slots_of(run)

    def __call__(self, run: RunContext, groups: Sequence[Group]) -> dict[str, float]:
        found = []
        for group in groups:
            if not len(group):
                continue
            entropies = [sum(r.signals["entropy"]) / max(len(r.signals["entropy"]), 1) for r in group]
            found.append(explorability([c > self.threshold for c in accuracies(group, self.slot, self.slots)], entropies, self.ratio))
            memory = run.history.setdefault(group.row.id, {}).setdefault(KEY, {"last": [], "visits": 0})
            memory["last"] = (memory["last"] + [found[-1]])[-self.keep :]
            memory["visits"] += 1
        return {"mean": sum(found) / len(found)} if found else {}


def retained(rows: Sequence[Row], history: Mapping[str, Mapping[str, Any]], n: int, under: int) -> list[Row]:
    """n of `rows`: those never visited, then the most explorable, fewer visits first among equals; `under` places go to the least visited others."""

    def rank(row: Row) -> tuple[float, int]:
        memory = history.get(row.id, {}).get(KEY)
        return (-sum(memory["last"]) / len(memory["last"]), memory["visits"]) if memory else (-math.inf, 0)

    ordered = sorted(rows, key=rank)
    kept, others = ordered[: n - under], ordered[n - under :]
    return kept + sorted(others, key=lambda row: (rank(row)[1], rank(row)[0]))[: n - len(kept)]


@register("depo")
@dataclass(frozen=True)
class Depo(Shuffle):
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
            raise ConfigError(f"prompt_sampler: least={self.least} must be in (0, 1], fall={self.fall} and under={self.under} not negative")

    def check(self, run: RunContext) -> None:
        super().check(run)
        if not any(callback.name == "depo.explorability" for callback in run.callbacks.values()):
            raise ConfigError("sampler explorable reads what callback explorability keeps; add callbacks: {explorability: {name: explorability}}")

    def setup(self, run: RunContext) -> None:
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
