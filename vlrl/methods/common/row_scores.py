"""What a row's past accuracies say about it: one number per row, from the accuracies of its visits, in order.

The visits compared are the first K of every row, K being the fewest that any row had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Series = Mapping[str, Sequence[float]]


def first_visits(series: Series) -> dict[str, list[float]]:
    """The first K accuracies of every row that was visited at all."""
    seen = {row: list(values) for row, values in series.items() if values}
    fewest = min(map(len, seen.values()), default=0)
    return {row: values[:fewest] for row, values in seen.items()}


def alignment(series: Series) -> dict[str, float]:
    """s_i = 1 - sum_k (r_ik - m_k)^2 / sum_k (1 - m_k)^2, m_k the mean over rows; 1 for all where every m_k is 1."""
    visits = first_visits(series)
    mean_K = [sum(column) / len(column) for column in zip(*visits.values())]
    most = sum((1 - mean) ** 2 for mean in mean_K)
    return {row: 1 - sum((r - m) ** 2 for r, m in zip(values, mean_K)) / most if most else 1.0 for row, values in visits.items()}


def spread(series: Series) -> dict[str, float]:
    """The standard deviation over a row's visits (all of them, over n)."""
    out = {}
    for row, values in series.items():
        if values:
            mean = sum(values) / len(values)
            out[row] = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return out


def accuracy(series: Series) -> dict[str, float]:
    """The mean over a row's visits."""
    return {row: sum(values) / len(values) for row, values in series.items() if values}


SCORES = {"alignment": alignment, "spread": spread, "accuracy": accuracy}
