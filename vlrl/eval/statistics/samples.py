"""Estimates from several samples per question: avg@k, pass@k, maj@k, G-Pass@k. Of n samples, c are
correct."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from typing import Any


def _check(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"need 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")


def avg_at_k(scores: Sequence[Sequence[float]]) -> float:
    """avg@k: mean over questions of the mean over their samples."""
    if not scores:
        return 0.0
    return sum(sum(question) / len(question) for question in scores) / len(scores)


def pass_at_k(n: int, c: int, k: int) -> float:
    """pass@k: the probability that k of the n samples, drawn without replacement, contain a correct one: 1 -
    C(n-c, k) / C(n, k).

    Paper: Chen et al. 2021, arXiv:2107.03374, eq. 1. Raises ValueError unless c <= n and 1 <= k <= n.
    """
    _check(n, c, k)
    return 1 - math.prod(1 - k / i for i in range(n - c + 1, n + 1)) if n - c >= k else 1.0


def g_pass_at_k(n: int, c: int, k: int, tau: float) -> float:
    """G-Pass@k: the probability that at least ceil(tau * k), and at least one, of k samples are correct.

    Paper: arXiv:2412.13147, eq. 3. tau -> 0 is pass@k; tau = 1 requires all k to be correct.
    """
    _check(n, c, k)
    return _at_least(n, c, k, max(1, math.ceil(Fraction(str(tau)) * k)))


def mean_g_pass_at_k(n: int, c: int, k: int) -> float:
    """mG-Pass@k = 2/k * sum over i = ceil(k/2)+1 .. k of G-Pass@k at tau = i/k. Paper: arXiv:2412.13147, eq.
    5."""
    _check(n, c, k)
    return 2 / k * sum(_at_least(n, c, k, i) for i in range(math.ceil(k / 2) + 1, k + 1))


def _at_least(n: int, c: int, k: int, count: int) -> float:
    """The probability that at least `count` of k samples are correct."""
    return sum(math.comb(c, j) * math.comb(n - c, k - j) for j in range(count, min(c, k) + 1)) / math.comb(
        n, k
    )


def equivalence_classes(
    answers: Sequence[Any], same: Callable[[Any, Any], bool] | None = None
) -> list[int | None]:
    """The equivalence class of each answer as a number; None (no answer extracted) has no class.

    `same` compares an answer with the first answer of each class; the default is ==.
    """
    firsts: list[Any] = []
    out: list[int | None] = []
    for answer in answers:
        if answer is None:
            out.append(None)
            continue
        known = next(
            (i for i, first in enumerate(firsts) if (same(first, answer) if same else first == answer)), None
        )
        if known is None:
            known = len(firsts)
            firsts.append(answer)
        out.append(known)
    return out


def maj_at_k(classes: Sequence[Hashable | None], scores: Sequence[float], k: int) -> float:
    """maj@k: the expected score of the majority answer of k samples, over all ways to draw them; ties are
    shared equally.

    `classes` are equivalence classes of extracted answers (None: no answer, which can be drawn but never
    wins); a class has the mean score of its members. Exact, by counting subsets. Paper: vlrl original
    estimator of self-consistency, arXiv:2203.11171.
    """
    n = len(classes)
    _check(n, 0, k)
    members: dict[Hashable, list[float]] = {}
    for name, score in zip(classes, scores, strict=True):
        if name is not None:
            members.setdefault(name, []).append(score)
    sizes = {name: len(values) for name, values in members.items()}
    without_answer = n - sum(sizes.values())
    total = Fraction(0)
    for name, values in members.items():
        others = [size for other, size in sizes.items() if other != name]
        win = _chance_to_win(sizes[name], others, without_answer, k)
        total += win * Fraction(sum(values) / len(values))
    return float(total)


def _chance_to_win(own: int, others: Sequence[int], without_answer: int, k: int) -> Fraction:
    """The probability that a class of `own` samples gets the most of k drawn votes; a tie of t classes counts
    1/t."""
    wins = Fraction(0)
    for votes in range(1, min(own, k) + 1):
        ways = {(0, 0): 1}  # (votes drawn from other classes, classes tied with this one) -> number of ways
        for size in others:
            grown: dict[tuple[int, int], int] = {}
            for (drawn, tied), count in ways.items():
                for more in range(min(size, votes, k - votes - drawn) + 1):
                    key = (drawn + more, tied + (more == votes))
                    grown[key] = grown.get(key, 0) + count * math.comb(size, more)
            ways = grown
        for (drawn, tied), count in ways.items():
            rest = math.comb(without_answer, k - votes - drawn) if k - votes - drawn >= 0 else 0
            wins += Fraction(math.comb(own, votes) * count * rest, tied + 1)
    return wins / math.comb(own + sum(others) + without_answer, k)
