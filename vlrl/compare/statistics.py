"""Statistics over few runs: means with bootstrap intervals, interquartile means, probability of improvement.

Source: Agarwal et al. 2021 (rliable), arXiv:2108.13264.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from vlrl.services.lazy import special


class Summary(NamedTuple):
    """A statistic over seeds and its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def iqm(values: Sequence[float]) -> float:
    """Interquartile mean: a quarter of the values is cut from either end, border values in part (of 5 seeds 3
    remain, with weights 0.75, 1, 0.75).

    Raises ValueError for no values.
    """
    if not len(values):
        raise ValueError("the interquartile mean of nothing is not defined")
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    edges = np.clip(np.arange(n + 1) / n, 0.25, 0.75)
    return float((ordered * np.diff(edges)).sum() / 0.5)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return float(np.mean(values))


def bootstrap(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = mean,
    draws: int = 2000,
    seed: int = 0,
) -> Summary:
    """Percentile interval of a statistic, seeds drawn with replacement. With one seed the interval is the
    point."""
    numbers: Any = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(seed).integers(0, len(numbers), (draws, len(numbers)))
    low, high = np.quantile([statistic(numbers[rows]) for rows in drawn], [0.025, 0.975])
    return Summary(statistic(numbers), float(low), float(high))


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Summary:
    """Mean of a_i - b_i over seeds that share their cold start, with Student's interval: percentiles of a
    bootstrap are too narrow for few pairs.

    With one seed the interval is everything.
    """
    gaps = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    if len(gaps) < 2:
        return Summary(float(gaps.mean()), -np.inf, np.inf)
    half = float(special.stdtrit(len(gaps) - 1, 0.975) * gaps.std(ddof=1) / len(gaps) ** 0.5)
    return Summary(float(gaps.mean()), float(gaps.mean()) - half, float(gaps.mean()) + half)


def probability_of_improvement(a: Sequence[float], b: Sequence[float]) -> float:
    """P(a run of A beats a run of B): the share of pairs that A wins, ties counting half."""
    x, y = np.asarray(a, dtype=float)[:, None], np.asarray(b, dtype=float)[None, :]
    return float(((x > y) + 0.5 * (x == y)).mean())


def improvement_interval(a: Sequence[float], b: Sequence[float], draws: int = 2000, seed: int = 0) -> Summary:
    """Probability of improvement with the interval from drawing the seeds of both sides."""
    x: Any = np.asarray(a, dtype=float)
    y: Any = np.asarray(b, dtype=float)
    random = np.random.default_rng(seed)
    values = [
        probability_of_improvement(
            x[random.integers(0, len(x), len(x))], y[random.integers(0, len(y), len(y))]
        )
        for _ in range(draws)
    ]
    low, high = np.quantile(values, [0.025, 0.975])
    return Summary(probability_of_improvement(a, b), float(low), float(high))
