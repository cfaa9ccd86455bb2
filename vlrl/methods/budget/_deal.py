"""Dealing out rollouts: where the next one gains most, and in proportion to difficulty."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

SMOOTH = 0.01  # pass rates are held this far from 0 and 1


def saturation(rates: Sequence[float]) -> float:
    """tau = 3 + 9 v, v = the variance of the rates over 1/6, at most 1: how many rollouts it takes until more of them gain little."""
    held = [min(max(p, SMOOTH), 1 - SMOOTH) for p in rates]
    centre = math.fsum(held) / len(held)
    return 3 + 9 * min(math.fsum((p - centre) ** 2 for p in held) / len(held) / 0.1667, 1.0)


def gain(b: int, p: float, tau: float, alpha: float, kappa: float) -> float:
    """V(b + 1, p) - V(b, p), V = (1 - e^(-b p (1 - p) / tau)) p^(alpha - 1) (1 - p)^(kappa - alpha - 1). The Beta's constant changes no choice."""
    p = min(max(p, SMOOTH), 1 - SMOOTH)
    speed = p * (1 - p) / tau
    return math.exp(-b * speed) * -math.expm1(-speed) * p ** (alpha - 1) * (1 - p) ** (kappa - alpha - 1)


def greedy(counts: list[int], members: Sequence[int], rates: Sequence[float], budget: int, alpha: float, kappa: float, high: int) -> int:
    """Give `budget` more rollouts, one at a time, to the member that gains most; returns how many were given. Ties go to the first."""
    tau = saturation([rates[i] for i in members])
    heap = [(-gain(counts[i], rates[i], tau, alpha, kappa), i) for i in members if counts[i] < high]
    heapq.heapify(heap)
    given = 0
    while heap and given < budget:
        _, i = heapq.heappop(heap)
        counts[i] += 1
        given += 1
        if counts[i] < high:
            heapq.heappush(heap, (-gain(counts[i], rates[i], tau, alpha, kappa), i))
    return given


def weighted(counts: list[int], members: Sequence[int], rates: Sequence[float], budget: int, high: int) -> int:
    """Give `budget` more in proportion to 1 - p, and what rounding and `high` leave over one by one; returns how many were given."""
    weights = {i: max(1 - rates[i], 1e-6) for i in members}
    total, given = sum(weights.values()), 0
    for i in members:
        more = min(int(budget * weights[i] / total), high - counts[i])
        counts[i] += more
        given += more
    while given < budget and (room := [i for i in members if counts[i] < high]):
        for i in room[: budget - given]:
            counts[i] += 1
            given += 1
    return given
