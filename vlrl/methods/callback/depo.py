"""How much a prompt has left to explore, from what the policy wrote on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.methods._accuracy import accuracies, slots_of
from vlrl.registry import ConfigError, register
from vlrl.stages import Callback
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run

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


@register("explorability")
@dataclass(frozen=True)
class Explorability(Callback):
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

    def setup(self, run: Run) -> None:
        self.slots[:] = slots_of(run)

    def __call__(self, run: Run, groups: Sequence[Group]) -> dict[str, float]:
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
