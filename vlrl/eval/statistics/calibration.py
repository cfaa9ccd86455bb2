"""Calibration of confidences: expected calibration error, Brier score, risk-coverage curve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def _pair(confidence: Sequence[float], correct: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    p, y = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    if p.shape != y.shape or not len(p) or p.min() < 0 or p.max() > 1:
        raise ValueError(
            f"need as many confidences in [0, 1] as outcomes, at least one; got {len(p)} and {len(y)}"
        )
    return p, y


def expected_calibration_error(
    confidence: Sequence[float], correct: Sequence[float], bins: int = 10
) -> float:
    """ECE: sum over bins (lo, hi] of equal width of (rows/n) * |mean correct - mean confidence|. Confidence 0
    is in the first bin.

    Source: Naeini et al. 2015; Guo et al. 2017, arXiv:1706.04599, eq. 3.
    """
    p, y = _pair(confidence, correct)
    place = np.clip(np.ceil(p * bins) - 1, 0, bins - 1).astype(int)
    gaps = [abs(y[place == b].mean() - p[place == b].mean()) * (place == b).mean() for b in np.unique(place)]
    return float(sum(gaps))


def brier(confidence: Sequence[float], correct: Sequence[float]) -> float:
    """Brier score: mean (confidence - correct)^2. Source: Brier 1950, Mon. Weather Rev. 78:1."""
    p, y = _pair(confidence, correct)
    return float(((p - y) ** 2).mean())


def risk_coverage(
    confidence: Sequence[float], correct: Sequence[float]
) -> tuple[list[float], list[float], float]:
    """Risk-coverage curve: (coverage, risk, area), the error rate among the most confident share of rows at
    every share, and its mean.

    Rows of equal confidence count with their mean error rate, the average over their orders. Source: Geifman
    and El-Yaniv 2017, arXiv:1705.08500.
    """
    p, y = _pair(confidence, correct)
    order = np.argsort(-p, kind="stable")
    p, wrong = p[order], 1 - y[order]
    _, block = np.unique(-p, return_inverse=True)
    shared = (np.bincount(block, weights=wrong) / np.bincount(block))[block]
    taken = np.arange(1, len(p) + 1)
    risk = np.cumsum(shared) / taken
    return (taken / len(p)).tolist(), risk.tolist(), float(risk.mean())
