"""rliable's statistics of a matrix of scores (runs x tasks): interquartile mean, optimality gap and
performance profiles, with stratified bootstrap intervals.

    IQM: mean of the middle half of all scores; the number cut off at either end is rounded down
    optimality gap: gamma - mean min(score, gamma)
    profile(tau): share of scores above tau;   P(X > Y): mean over tasks of Mann-Whitney's U / (n m)

Paper: Agarwal et al. 2021 (rliable), arXiv:2108.13264; google-research/rliable at 3ccd9f4d,
rliable/metrics.py and library.py (StratifiedBootstrap: runs are drawn anew for every task; percentile
intervals).

Shapes: N runs, M tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlrl.probes.result import Figure, ProbeResult

Scores = NDArray[np.float64]
GAMMA = 1.0
TAUS = 21  # points of a profile


def iqm(scores_NM: Scores) -> float:
    """The 25% trimmed mean of all scores."""
    ordered = np.sort(scores_NM, axis=None)
    cut = int(0.25 * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean())


def optimality_gap(scores_NM: Scores, gamma: float = GAMMA) -> float:
    """How far the scores, cut at `gamma`, are below it on average."""
    return float(gamma - np.minimum(scores_NM, gamma).mean())


def profile(scores_NM: Scores, taus: Sequence[float]) -> list[float]:
    """The share of scores above each threshold."""
    return [float((scores_NM > tau).mean()) for tau in taus]


def improvement(x_NM: Scores, y_NM: Scores) -> float:
    """The probability that a run of X beats a run of Y on a task, mean over tasks; ties count half."""
    pairs = [
        (x[:, None] > y[None, :]).mean() + 0.5 * (x[:, None] == y[None, :]).mean()
        for x, y in zip(x_NM.T, y_NM.T, strict=True)
    ]
    return float(np.mean(pairs))


def interval(
    statistic: Callable[[Scores], float], scores_NM: Scores, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """The 95% percentile interval of a statistic: in each draw every task draws its runs anew."""
    random = np.random.default_rng(seed)
    tasks = np.arange(scores_NM.shape[1])[None, :]
    found = [
        statistic(scores_NM[random.integers(0, len(scores_NM), scores_NM.shape), tasks]) for _ in range(draws)
    ]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def measure(scores: Mapping[str, Sequence[Sequence[float]]], draws: int = 2000) -> ProbeResult:
    """Each method's statistics, and its probability to beat the first method. `scores`: per method a list of
    runs, each a list of one score per task.

    Raises ValueError for methods with different tasks.
    """
    matrices = {name: np.asarray(runs, dtype=float) for name, runs in scores.items()}
    first = next(iter(matrices))
    for name, matrix in matrices.items():
        if matrix.ndim != 2 or matrix.shape[1] != matrices[first].shape[1]:
            raise ValueError(
                f"{name}: scores of shape {matrix.shape}; every method needs runs x "
                f"{matrices[first].shape[1]} "
                "tasks, as the first one has"
            )
    low, high = min(m.min() for m in matrices.values()), max(m.max() for m in matrices.values())
    taus = [float(tau) for tau in np.linspace(low, high, TAUS)]
    table: list[list[Any]] = []
    bounds = {}
    for name, matrix in matrices.items():
        bounds[name] = interval(iqm, matrix, draws)
        better = improvement(matrix, matrices[first])
        table.append([name, iqm(matrix), *bounds[name], optimality_gap(matrix), better])
    best = max(table, key=lambda row: row[1])
    apart = [name for name in matrices if name != best[0] and bounds[name][1] < bounds[best[0]][0]]
    statement = (
        f"{best[0]} has the highest interquartile mean ({best[1]:.3f}); its interval lies above that of "
        f"{', '.join(apart) if apart else 'no other method'}. Methods whose intervals overlap are not told "
        "apart by these runs."
    )
    lines = {name: list(zip(taus, profile(matrix, taus), strict=True)) for name, matrix in matrices.items()}
    head = ("method", "IQM", "low", "high", "optimality gap", f"P(> {first})")
    figure = Figure(lines, "tau", "share of runs and tasks with a score above tau", unit="share")
    return ProbeResult(
        "Few runs: interquartile means and performance profiles", statement, head, table, figure
    )
