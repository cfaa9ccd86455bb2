"""DEPO: rows chosen for diversity, influence and difficulty before training; during it, prompts that leave
little to explore are passed over.

    depo.diverse         select: the offline half
    depo.explorability   callback that measures what a prompt has left to explore
    depo                 prompt sampler that reads it: the online half

Paper: Tang et al. 2025 (DEPO), arXiv:2509.01321. The online half is checked against the release's
Rollout_Purning class (least share 0.4; there the places beyond the ranked ones fill the batch up to a
multiple of the devices, here `under_explored`); `ratio`, `keep`, `initial_share` and `decay` are ours.
Deviates: the batch keeps its size and more rows are considered, where the release's batches shrink. Offline,
hashed character n-grams stand in for sentence embeddings, and the pass rates must be in the rows. As in the
release, a group in which all are wrong has explorability 0.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlrl.methods.core.prompt_sampler import Shuffle
from vlrl.methods.core.select import SelectedRows
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import CallbackContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Callback, Select
from vlrl.types import Group, Row

EXPLORABILITY = Capability(
    "depo.explorability", hint="callbacks: {explorability: {name: depo.explorability}}"
)
# of a row's memory in the run's history: {"last": values of the last visits, "visits": their number}
KEY = "explorability"


@register("depo.diverse")
@dataclass(frozen=True)
class DepoDiverse(Select):
    """DEPO's offline selection: `diverse` of the rows by a PageRank-weighted determinantal point process,
    then `share` of all rows by difficulty.

        L_ij = q_i S_ij q_j,  S the cosine similarities of questions, q their PageRank in the graph of S
        (damping 0.85), scaled to a mean of 1

    Rows are added greedily, each time the one that raises det L most (Chen et al. 2018, arXiv:1709.05135). Of
    these, rows are drawn without replacement with weights exp(-(p - target)^2 / (2 width^2)), p the pass rate
    in `row.meta[by]`: a normal target for the pass rate. Rows without a pass rate have weight 1.
    Paper: arXiv:2509.01321, sec. 3.1 (diversity, influence, difficulty; about a fifth of the data). Ours:
    hashed character trigrams as embeddings, `target` and `width`. Edge: all rows are compared with each other
    (memory grows with n^2), so only the first `limit` are considered. Equal on all ranks.
    """

    diverse: float = 0.4
    share: float = 0.2
    by: str = "pass_rate"
    target: float = 0.5
    width: float = 0.2
    limit: int = 5000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= self.diverse <= 1 or self.width <= 0 or self.limit < 1:
            raise ConfigError(
                f"select: 'depo.diverse' needs 0 < share={self.share} <= diverse={self.diverse} <= 1, "
                "width and limit above 0"
            )

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        n = min(len(rows), self.limit)
        features = question_features([rows[i].question for i in range(n)])
        similarity = features @ features.T
        weighted = page_rank(similarity)[:, None] * similarity * page_rank(similarity)[None]
        chosen = greedy_dpp(weighted, math.ceil(self.diverse * n))
        rng = np.random.default_rng(self.seed)
        rates = [rows[i].meta.get(self.by) for i in chosen]
        weights = [
            1.0 if p is None else math.exp(-((float(p) - self.target) ** 2) / (2 * self.width**2))
            for p in rates
        ]
        keys = {
            i: rng.random() ** (1 / max(weight, 1e-12)) for i, weight in zip(chosen, weights, strict=True)
        }  # weighted draw without replacement
        kept = sorted(chosen, key=lambda i: -keys[i])[: math.ceil(self.share * n)]
        return SelectedRows(rows, sorted(kept))


def question_features(questions: Sequence[str], dim: int = 256) -> np.ndarray:
    """(n, dim) unit vectors of hashed character trigrams, weighted by their inverse document frequency."""
    counts = np.zeros((len(questions), dim))
    for place, text in enumerate(questions):
        padded = f"  {text.casefold()} "
        for start in range(len(padded) - 2):
            counts[place, zlib.crc32(padded[start : start + 3].encode()) % dim] += 1.0
    rarity = np.log((1 + len(questions)) / (1 + (counts > 0).sum(0))) + 1
    weighted = np.sqrt(counts) * rarity
    return weighted / np.maximum(np.linalg.norm(weighted, axis=1, keepdims=True), 1e-12)


def page_rank(similarity: np.ndarray, damping: float = 0.85, rounds: int = 50) -> np.ndarray:
    """(n,) PageRank of the graph whose edges are similarities between different rows, scaled to a mean of
    1."""
    n = len(similarity)
    edges = np.clip(similarity, 0.0, None) * (1 - np.eye(n))
    flow = edges / np.maximum(edges.sum(0, keepdims=True), 1e-12)
    rank = np.full(n, 1 / n)
    for _ in range(rounds):
        rank = (1 - damping) / n + damping * (flow @ rank)
    return rank * n / rank.sum()


def greedy_dpp(kernel: np.ndarray, count: int) -> list[int]:
    """The rows that greedily maximise det of their part of `kernel`; stops where no row adds anything."""
    gains, factors = np.diag(kernel).astype(float).copy(), np.zeros((count, len(kernel)))
    chosen: list[int] = []
    while len(chosen) < count:
        best = int(np.argmax(gains))
        if gains[best] <= 1e-10:
            break
        known = factors[: len(chosen)]
        factors[len(chosen)] = (kernel[best] - known[:, best] @ known) / math.sqrt(gains[best])
        gains = gains - factors[len(chosen)] ** 2
        gains[best] = -math.inf
        chosen.append(best)
    return chosen


@register("depo.explorability")
@dataclass(frozen=True)
class DepoExplorability(Callback):
    """DEPO's explorability of a prompt, kept in the run's history at each visit; logs the mean over the
    step's groups.

        sum_i |A_i| H_i,  H_i the mean token entropy of rollout i (nats)

    Wrong rollouts with an entropy above `ratio` times the mean of the correct ones are left out. The values
    of the last `keep` visits are kept, and the number of visits. Groups that a group filter dropped are not
    counted. Every rank keeps the values of all ranks.
    """

    ratio: float = 2.0
    keep: int = 3
    needs = ("entropy",)
    provides = (EXPLORABILITY,)

    def __post_init__(self) -> None:
        if self.keep < 1 or self.ratio <= 0:
            raise ConfigError(
                f"callbacks: depo.explorability needs keep={self.keep} of at least 1 and "
                f"ratio={self.ratio} above 0"
            )

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        values = []
        for group in groups:
            if not len(group):
                continue
            entropies = [
                sum(r.signals["entropy"]) / max(r.trained_tokens, 1) for r in group
            ]  # 0 at tokens that are not trained on
            values.append(explorability([r.correct for r in group], entropies, self.ratio))
            memory = run.history.setdefault(group.row.id, {}).setdefault(KEY, {"last": [], "visits": 0})
            memory["last"] = (memory["last"] + [values[-1]])[-self.keep :]
            memory["visits"] += 1
        return {"mean": sum(values) / len(values)} if values else {}


def explorability(correct: Sequence[bool], entropies: Sequence[float], ratio: float) -> float:
    """sum_i |A_i| H_i over the correct rollouts and those wrong ones with H_i <= ratio (mean H of the
    correct); A = (c - mean c) / std c, c in {0, 1}.

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
    """DEPO's online selection: n of the next ceil(n / share) rows, those with the highest mean explorability
    over their last visits.

        share = clip(initial_share - decay * epoch, min_share, 1)

    In the first epoch all rows are taken; in later ones rows that were never visited come before all others.
    `under_explored` rows of a call are the least visited of those that would be passed over. Reads what the
    callback `depo.explorability` keeps, which is equal on all ranks.
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
                f"prompt_sampler: min_share={self.min_share} must be in (0, 1], decay={self.decay} and "
                f"under_explored={self.under_explored} "
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


def retained(
    rows: Sequence[Row], history: Mapping[str, Mapping[str, Any]], n: int, under_explored: int
) -> list[Row]:
    """n of `rows`: those never visited, then by falling mean explorability (ties: fewer visits first).

    `under_explored` of the n places go to the least visited of the others.
    """

    def rank(row: Row) -> tuple[float, int]:
        memory = history.get(row.id, {}).get(KEY)
        return (-sum(memory["last"]) / len(memory["last"]), memory["visits"]) if memory else (-math.inf, 0)

    ordered = sorted(rows, key=rank)
    kept, others = ordered[: n - under_explored], ordered[n - under_explored :]
    return kept + sorted(others, key=lambda row: (rank(row)[1], rank(row)[0]))[: n - len(kept)]
