"""DEPO, its online half: prompts whose rollouts leave little to explore are passed over before anything is sampled.

`depo.explorability` is the callback that measures what a prompt has left to explore, `depo` the prompt sampler that reads it.

Paper: Tang et al. 2025 (DEPO), arXiv:2509.01321, online selection and replay of under-explored samples; checked against rollout_purning.py of the
release (least share 0.4; there `under_explored` fills the batch up to a multiple of the devices; the values of its other options were not found:
`ratio`, `keep`, `initial_share` and `decay` are ours). Deviates: the batch keeps its size and more rows are considered, where the release's batches
shrink; a group in which all are wrong has explorability 0 there too, because no entropy is below 0. The offline half (selection by embeddings) is
left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.capabilities import Capability
from vlrl.context import RunContext
from vlrl.methods.core.prompt_sampler import Shuffle
from vlrl.registry import ConfigError, register
from vlrl.stages import Callback
from vlrl.types import Group, Row

EXPLORABILITY = Capability("depo.explorability", hint="callbacks: {explorability: {name: depo.explorability}}")
KEY = "explorability"  # of a row's memory in the run's history: {"last": values of the last visits, "visits": their number}


@register("depo.explorability")
@dataclass(frozen=True)
class DepoExplorability(Callback):
    """DEPO's explorability of a prompt, kept in the run's history at each visit; logs the mean over the step's groups.

        sum_i |A_i| H_i,  H_i the mean token entropy of rollout i (nats)

    Wrong rollouts with an entropy above `ratio` times the mean of the correct ones are left out. The values of the last `keep` visits are kept, and
    the number of visits. Groups that a group filter dropped are not counted. Every rank keeps the values of all ranks.
    """

    ratio: float = 2.0
    keep: int = 3
    needs = ("entropy",)
    provides = (EXPLORABILITY,)

    def __post_init__(self) -> None:
        if self.keep < 1 or self.ratio <= 0:
            raise ConfigError(f"callbacks: depo.explorability needs keep={self.keep} of at least 1 and ratio={self.ratio} above 0")

    def __call__(self, run: RunContext, groups: Sequence[Group]) -> dict[str, float]:
        values = []
        for group in groups:
            if not len(group):
                continue
            entropies = [sum(r.signals["entropy"]) / max(r.trained_tokens, 1) for r in group]  # 0 at tokens that are not trained on
            values.append(explorability([r.correct for r in group], entropies, self.ratio))
            memory = run.history.setdefault(group.row.id, {}).setdefault(KEY, {"last": [], "visits": 0})
            memory["last"] = (memory["last"] + [values[-1]])[-self.keep :]
            memory["visits"] += 1
        return {"mean": sum(values) / len(values)} if values else {}


def explorability(correct: Sequence[bool], entropies: Sequence[float], ratio: float) -> float:
    """sum_i |A_i| H_i over the correct rollouts and those wrong ones with H_i <= ratio (mean H of the correct); A = (c - mean c) / std c, c in {0,
    1}.

    0 where all are correct or all are wrong.
    """
    n, of_correct = len(correct), [h for ok, h in zip(correct, entropies) if ok]
    if not 0 < len(of_correct) < n:
        return 0.0
    mean = len(of_correct) / n
    std = math.sqrt(mean * (1 - mean))
    bound = ratio * sum(of_correct) / len(of_correct)
    of_wrong = [h for ok, h in zip(correct, entropies) if not ok and h <= bound]
    return ((1 - mean) * sum(of_correct) + mean * sum(of_wrong)) / std


@register("depo")
@dataclass(frozen=True)
class Depo(Shuffle):
    """DEPO's online selection: n of the next ceil(n / share) rows, those with the highest mean explorability over their last visits.

        share = clip(initial_share - decay * epoch, min_share, 1)

    In the first epoch all rows are taken; in later ones rows that were never visited come before all others. `under_explored` rows of a call are the
    least visited of those that would be passed over. Reads what the callback `depo.explorability` keeps, which is equal on all ranks.
    """

    initial_share: float = 1.0
    decay: float = 0.1
    min_share: float = 0.4
    under_explored: int = 0
    requires = (EXPLORABILITY,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.min_share <= 1 or self.decay < 0 or self.under_explored < 0:
            raise ConfigError(
                f"prompt_sampler: min_share={self.min_share} must be in (0, 1], decay={self.decay} and under_explored={self.under_explored} "
                "not negative"
            )

    def share(self) -> float:
        """The share of the considered rows that is taken now."""
        epoch = self.state.position // len(self.state.mixture)
        return min(max(self.initial_share - self.decay * epoch, self.min_share), 1.0) if epoch else 1.0

    def __call__(self, n: int) -> list[Row]:
        rows = super().__call__(math.ceil(n / self.share() - 1e-9))
        return retained(rows, self.run.history, n, min(self.under_explored, n))

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "data/share": self.share()}


def retained(rows: Sequence[Row], history: Mapping[str, Mapping[str, Any]], n: int, under_explored: int) -> list[Row]:
    """n of `rows`: those never visited, then by falling mean explorability (ties: fewer visits first).

    `under_explored` of the n places go to the least visited of the others.
    """

    def rank(row: Row) -> tuple[float, int]:
        memory = history.get(row.id, {}).get(KEY)
        return (-sum(memory["last"]) / len(memory["last"]), memory["visits"]) if memory else (-math.inf, 0)

    ordered = sorted(rows, key=rank)
    kept, others = ordered[: n - under_explored], ordered[n - under_explored :]
    return kept + sorted(others, key=lambda row: (rank(row)[1], rank(row)[0]))[: n - len(kept)]
