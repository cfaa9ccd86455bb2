"""The three-parameter logistic curve of item response theory: accuracy by the share of a solution that is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

START = (10.0, -0.5, 0.0)
BOUNDS = ((1e-3, -2.0, 0.0), (50.0, 1.0, 0.99))


def curve(p: Any, k: float, mu: float, b: float) -> Any:
    """f(p) = b + (1 - b) / (1 + e^(-k (p + mu)))."""
    return b + (1 - b) / (1 + np.exp(-k * (np.asarray(p) + mu)))


def fit(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """(k, mu, b) of the curve nearest, in squares, to the (rate, accuracy) pairs; those of one rate are averaged first."""
    rates = sorted({p for p, _ in pairs})
    seen = np.array([np.mean([a for p, a in pairs if p == rate]) for rate in rates])
    found = least_squares(lambda phi: curve(np.array(rates), *phi) - seen, START, bounds=BOUNDS, method="trf")
    k, mu, b = found.x.tolist()
    return k, mu, b


def rate_for(target: float, k: float, mu: float, b: float) -> float:
    """f^-1(target); minus infinity where guessing alone reaches it."""
    return -mu - math.log((1 - b) / (target - b) - 1) / k if b < target else -math.inf
