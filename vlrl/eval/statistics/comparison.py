"""Comparison of two runs on the same rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from vlrl.eval.statistics.intervals import cluster_numbers, clustered_standard_error
from vlrl.services.lazy import special


@dataclass(frozen=True)
class Comparison:
    """Run B minus run A: the difference of means with its interval and standard error, and the p-value of
    equal means."""

    difference: float
    low: float
    high: float
    se: float
    p_value: float
    test: str
    gained: int  # rows with a higher score in B
    lost: int  # rows with a lower score in B
    n: int
    detectable: float  # the smallest true difference that is found with 80% power at 5%


def mcnemar(gained: int, lost: int) -> float:
    """McNemar's exact two-sided p-value: a binomial test of `gained` in gained + lost trials with probability
    1/2; 1 if no row differs.

    Source: McNemar 1947, Psychometrika 12:153 (exact binomial form).
    """
    return min(1.0, 2 * float(special.bdtr(min(gained, lost), gained + lost, 0.5)))


def permutation_test(
    differences: Sequence[float] | np.ndarray,
    clusters: Sequence[Hashable] | None = None,
    draws: int = 9999,
    seed: int = 0,
) -> float:
    """Two-sided p-value of a mean difference under random sign flips per cluster: (1 + #{|m*| >= |m|}) / (1 +
    draws).

    All sign patterns (an exact test) for up to 12 clusters. Source: Phipson and Smyth 2010, arXiv:1603.05766
    (the +1).
    """
    values = np.asarray(differences, dtype=np.float64)
    sums = values if clusters is None else np.bincount(cluster_numbers(clusters), weights=values)
    sums = sums[sums != 0]
    if not len(sums):
        return 1.0
    observed = abs(sums.sum()) * (1 - 1e-12)
    if len(sums) <= 12:
        signs = 1 - 2 * ((np.arange(2 ** len(sums))[:, None] >> np.arange(len(sums))) & 1)
        return float((abs(signs @ sums) >= observed).mean())
    generator = np.random.default_rng(seed)
    extreme = sum(
        int((abs(generator.choice((-1.0, 1.0), size=(size, len(sums))) @ sums) >= observed).sum())
        for size in [1000] * (draws // 1000) + ([draws % 1000] if draws % 1000 else [])
    )
    return (1 + extreme) / (1 + draws)


def minimum_detectable_effect(se: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Minimum detectable effect of a two-sided test at `alpha` with the given power: (z_{1-alpha/2} +
    z_power) * SE.

    To plan two runs of n rows with binary scores, accuracy p and correlation r: SE = sqrt(2 p (1-p) (1-r) /
    n).
    Source: Miller 2024, arXiv:2411.00640, sec. 5.
    """
    return float(special.ndtri(1 - alpha / 2) + special.ndtri(power)) * se


def compare(
    a: Sequence[float],
    b: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    weights: Sequence[float] | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compares the scores of run B with those of run A on the same rows.

    Args:
        a: One score per row of run A: the mean over its samples.
        b: The same of run B.
        clusters: The cluster of each row; without it every row is one.
        weights: Row weights that sum to 1, for the difference of macro averages.
        level: Confidence level of the interval.
        seed: Random seed of the permutation test.

    Returns:
        The comparison. Binary scores without clusters and weights get McNemar's exact test, all others a
        permutation test by cluster.

    Raises:
        ValueError: The runs have different numbers of rows, or none.
    """
    if len(a) != len(b) or not len(a):
        raise ValueError(f"a comparison needs the same rows of both runs, got {len(a)} and {len(b)}")
    labels = list(range(len(a))) if clusters is None else list(clusters)
    difference = np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)
    gained, lost = int((difference > 0).sum()), int((difference < 0).sum())
    if weights is not None:
        difference = (
            difference * np.asarray(weights, dtype=np.float64) * len(a)
        )  # the mean of these is the difference of the weighted means
    groups = len(set(labels))
    se = clustered_standard_error(difference, labels)
    half = float(special.stdtrit(max(1, groups - 1), (1 + level) / 2)) * se
    mean = float(difference.mean())
    binary = weights is None and groups == len(a) and set(np.unique([*a, *b])) <= {0.0, 1.0}
    test, p_value = (
        ("mcnemar", mcnemar(gained, lost))
        if binary
        else ("permutation", permutation_test(difference, labels, seed=seed))
    )
    detectable = minimum_detectable_effect(se)
    return Comparison(
        mean,
        max(-1.0, mean - half),
        min(1.0, mean + half),
        se,
        p_value,
        test,
        gained,
        lost,
        len(a),
        detectable,
    )
