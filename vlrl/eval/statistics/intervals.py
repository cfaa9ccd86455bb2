"""Confidence intervals of means and of means of means."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from vlrl.services.lazy import special


class Interval(NamedTuple):
    """An estimate with its interval and standard error, from `n` rows in `clusters` independent clusters."""

    value: float
    low: float
    high: float
    se: float
    n: int
    clusters: int
    method: str

    def __contains__(self, value: object) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high


def wilson(
    successes: float, n: float, level: float = 0.95, critical: float | None = None
) -> tuple[float, float]:
    """Wilson's score interval of a proportion. `n` may be an effective sample size. Raises ValueError for n
    <= 0.

    (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n). Source: Wilson 1927, JASA 22:209.
    """
    if n <= 0 or not 0 <= successes <= n * (1 + 1e-12):
        raise ValueError(f"need n > 0 and 0 <= successes <= n, got {successes} of {n}")
    z = critical if critical is not None else float(special.ndtri((1 + level) / 2))
    p = min(1.0, successes / n)
    centre = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return (0.0 if p == 0 else (centre - half) / scale), (1.0 if p == 1 else (centre + half) / scale)


def cluster_numbers(labels: Sequence[Hashable]) -> np.ndarray:
    """The labels as numbers 0, 1, ... in order of first appearance."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)


def clustered_standard_error(scores: Sequence[float] | np.ndarray, clusters: Sequence[Hashable]) -> float:
    """Clustered standard error of a mean: sqrt(s^2/n + (1/n^2) sum over clusters of [(sum d)^2 - sum d^2]), d
    = score - mean, s^2 with n - 1.

    Source: Miller 2024, arXiv:2411.00640, eq. 4. One row per cluster gives s/sqrt(n). Edge: fewer than two
    rows give 0.
    """
    values = np.asarray(scores, dtype=np.float64)
    n = len(values)
    if n < 2:
        return 0.0
    deviation = values - values.mean()
    sums = np.bincount(cluster_numbers(clusters), weights=deviation)
    squares = np.bincount(cluster_numbers(clusters), weights=deviation**2)
    variance = values.var(ddof=1) / n + float((sums**2 - squares).sum()) / n**2
    return math.sqrt(max(0.0, variance))


def mean_interval(
    scores: Sequence[float], clusters: Sequence[Hashable] | None = None, level: float = 0.95
) -> Interval:
    """The mean of scores in [0, 1] with a Wilson interval for the effective number of independent rows, n_eff
    = p(1-p)/SE^2, SE clustered.

    Independent binary scores give Wilson's interval; scores that are all 0, or all 1, give that of as many
    rows as there are clusters. With clusters, the critical value is Student's with (clusters - 1) degrees of
    freedom. Raises ValueError without scores. Source: Franco et al. 2019, J. Surv. Stat. Methodol. 7:334
    (Wilson's interval with an effective size).
    """
    if not len(scores):
        raise ValueError("an interval needs at least one score")
    labels = list(range(len(scores))) if clusters is None else list(clusters)
    n, groups = len(scores), len(set(labels))
    mean = float(np.mean(scores))
    se = clustered_standard_error(scores, labels)
    if groups == n and all(score in (0, 1) for score in scores):
        low, high = wilson(mean * n, n, level)
        return Interval(mean, low, high, se, n, groups, "wilson")
    # With few clusters their variance is estimated from few values, hence Student's quantile instead of the
    # normal one.
    correction = groups / (groups - 1) if 1 < groups < n else 1.0
    critical = float(special.stdtrit(max(1, groups - 1), (1 + level) / 2))
    variance = se * se * correction
    effective = mean * (1 - mean) / variance if variance > 0 and 0 < mean < 1 else float(groups)
    low, high = wilson(mean * effective, effective, level, critical)
    return Interval(
        mean, low, high, se, n, groups, "clustered wilson" if groups < n else "wilson, effective size"
    )


def bootstrap(
    statistic: Callable[[np.ndarray], np.ndarray],
    strata: Sequence[Hashable],
    clusters: Sequence[Hashable],
    draws: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Stratified cluster bootstrap: a percentile interval of a statistic.

    Clusters are drawn with replacement, within their stratum where no cluster spans two; from m clusters m -
    1 are drawn, which makes the variance of a stratum's mean unbiased. A stratum of one cluster is kept
    unchanged. Source: Rao and Wu 1988, JASA 83:231.

    Args:
        statistic: Maps counts of how often each row was drawn, (draws, rows), to values, (draws,).
        strata: The stratum of each row.
        clusters: The cluster of each row.
        draws: Bootstrap draws.
        seed: Random seed.
        level: Confidence level.
    """
    group = cluster_numbers(clusters)
    stratum = cluster_numbers(strata)
    if len({(int(s), int(c)) for s, c in zip(stratum, group, strict=True)}) > group.max() + 1:
        stratum = np.zeros_like(
            stratum
        )  # a cluster (a video) spans several strata (tasks), so that strata cannot be drawn separately
    generator = np.random.default_rng(seed)
    counts = np.zeros((draws, int(group.max()) + 1), dtype=np.float64)
    for name in range(int(stratum.max()) + 1):
        members = np.unique(group[stratum == name])
        taken = max(1, len(members) - 1)
        counts[:, members] = generator.multinomial(taken, np.full(len(members), 1 / len(members)), size=draws)
    values = statistic(counts[:, group])
    value = float(statistic(np.ones((1, len(group))))[0])
    number = int(group.max()) + 1
    if (
        np.ptp(values) == 0
        # all draws are equal (for instance all answers correct): Wilson's interval for as many rows as there
        # are
        # clusters
    ):
        low, high = wilson(value * number, number, level) if 0 <= value <= 1 else (value, value)
        return Interval(value, low, high, 0.0, len(group), number, "wilson of clusters")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(
        value, float(low), float(high), float(values.std(ddof=1)), len(group), number, "stratified bootstrap"
    )


def macro_weights(paths: Sequence[tuple[Any, ...]]) -> np.ndarray:
    """The weight of each row in the nested mean: 1 / (groups of the first level * groups below * ... * rows
    of its last group). They sum to 1."""
    weights = np.ones(len(paths))

    def share(members: list[int], depth: int, weight: float) -> None:
        if depth == len(paths[members[0]]):
            weights[members] = weight / len(members)
            return
        groups: dict[Any, list[int]] = {}
        for i in members:
            groups.setdefault(paths[i][depth], []).append(i)
        for group in groups.values():
            share(group, depth + 1, weight / len(groups))

    if len(paths):
        share(list(range(len(paths))), 0, 1.0)
    return weights


def macro_statistic(
    scores: Sequence[float], paths: Sequence[tuple[Any, ...]]
) -> Callable[[np.ndarray], np.ndarray]:
    """The nested mean of scores as a function of bootstrap counts; groups that were not drawn are left
    out."""
    values = np.asarray(scores, dtype=np.float64)

    def fold(counts: np.ndarray, members: np.ndarray, depth: int) -> np.ndarray:
        if depth == len(paths[int(members[0])]):
            weights = counts[:, members]
            total = weights.sum(1)
            return np.divide(
                weights @ values[members], total, out=np.full(len(counts), np.nan), where=total > 0
            )
        groups: dict[Any, list[int]] = {}
        for i in members:
            groups.setdefault(paths[int(i)][depth], []).append(int(i))
        parts = np.stack([fold(counts, np.array(group), depth + 1) for group in groups.values()])
        present = ~np.isnan(parts)
        number = present.sum(0)
        return np.divide(
            np.where(present, parts, 0).sum(0), number, out=np.full(len(counts), np.nan), where=number > 0
        )

    return lambda counts: fold(np.asarray(counts, dtype=np.float64), np.arange(len(values)), 0)
