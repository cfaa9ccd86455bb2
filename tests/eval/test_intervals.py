"""Intervals against hand-worked values, and their coverage in 2,000 simulated runs."""

from __future__ import annotations

import numpy as np
import pytest

from vlrl.eval.statistics import (
    bootstrap,
    clustered_standard_error,
    compare,
    mcnemar,
    mean_interval,
    minimum_detectable_effect,
    permutation_test,
    wilson,
)
from vlrl.eval.statistics.intervals import macro_statistic, macro_weights

RUNS = 2000


@pytest.mark.parametrize(
    ("successes", "n", "expected"),
    [(30, 30, (0.8865, 1.0)), (0, 30, (0.0, 0.1135)), (15, 30, (0.332, 0.669)), (1, 1, (0.2065, 1.0))],
)
def test_wilson_known_values(successes, n, expected):
    low, high = wilson(successes, n)
    assert (round(low, 4), round(high, 4)) == pytest.approx(expected, abs=1e-3)


def test_wilson_refuses_nonsense():
    with pytest.raises(ValueError, match="n > 0"):
        wilson(3, 2)


def test_clustered_error_of_perfect_clusters():
    scores = [1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert clustered_standard_error(scores, range(12)) == pytest.approx(0.15076, abs=1e-5)
    assert clustered_standard_error(scores, [i // 3 for i in range(12)]) == pytest.approx(0.25376, abs=1e-5)


def test_mean_interval_cases():
    assert mean_interval([1, 0, 1, 1]).method == "wilson"
    assert mean_interval([1.0] * 30).low == pytest.approx(0.8865, abs=1e-4)
    four = mean_interval([1.0] * 30, [i % 4 for i in range(30)])
    assert four.low < wilson(4, 4)[0] + 1e-9  # thirty rows of four pictures are four draws
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])


def covered(hits: int) -> bool:
    """95% of 2,000 runs, give or take 4 standard errors of that count."""
    return abs(hits - 0.95 * RUNS) < 4 * np.sqrt(RUNS * 0.95 * 0.05)


@pytest.mark.parametrize(("p", "n"), [(0.5, 100), (0.83, 150), (0.3, 60)])
def test_wilson_covers_at_its_rate(p, n):
    draws = np.random.default_rng(1).binomial(n, p, size=RUNS)
    assert covered(sum(low <= p <= high for low, high in (wilson(int(c), n) for c in draws)))


@pytest.mark.parametrize(("clusters", "size", "spread"), [(40, 5, 1.0), (80, 3, 0.4)])
def test_clustered_interval_covers_and_the_plain_one_does_not(clusters, size, spread):
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(clusters), size)
    a = 0.6 / spread
    hits = plain = 0
    for _ in range(RUNS):
        chance = rng.beta(a, a * 2 / 3, size=clusters)  # mean 0.6, correlated within a cluster
        scores = (rng.random(clusters * size) < np.repeat(chance, size)).astype(float)
        interval = mean_interval(scores, labels)
        hits += 0.6 in interval
        low, high = wilson(scores.sum(), len(scores))
        plain += low <= 0.6 <= high
    assert covered(hits)
    assert plain < 0.90 * RUNS


def test_stratified_bootstrap_of_a_macro_score_covers():
    rng = np.random.default_rng(3)
    sizes, chances = (30, 50, 40), (0.7, 0.4, 0.6)
    strata = np.repeat(np.arange(3), sizes)
    paths = [(int(s),) for s in strata]
    truth = float(np.mean(chances))
    hits = 0
    for run in range(RUNS):
        scores = (rng.random(len(strata)) < np.repeat(chances, sizes)).astype(float)
        hits += truth in bootstrap(
            macro_statistic(scores, paths), strata, range(len(strata)), draws=400, seed=run
        )
    assert covered(hits), hits


def test_macro_statistic_is_the_nested_mean():
    scores, paths = [1, 0, 1, 1], [("a", "x"), ("a", "x"), ("a", "y"), ("b", "z")]
    statistic = macro_statistic(scores, paths)
    assert statistic(np.ones((1, 4)))[0] == pytest.approx(((0.5 + 1) / 2 + 1) / 2)
    assert statistic(np.array([[1, 1, 0, 0]]))[0] == pytest.approx(0.5)  # what was not drawn is left out


def test_bootstrap_of_clusters_that_span_strata():
    scores = np.tile([1.0, 0.0, 1.0, 1.0], 10)
    videos, tasks = np.repeat(np.arange(10), 4), np.tile(["a", "b", "a", "b"], 10)
    interval = bootstrap(macro_statistic(scores, [(t,) for t in tasks]), tasks, videos, draws=200)
    assert interval.value == pytest.approx(0.75)
    assert (
        interval.method == "wilson of clusters"
    )  # every video is the same, so drawing videos changes nothing: ten draws, three in four right
    assert (interval.low, interval.high) == pytest.approx(wilson(7.5, 10))


def test_comparison_of_two_runs():
    a, b = [1, 1, 0, 0, 1, 0, 0, 0], [1, 0, 1, 1, 1, 1, 1, 1]
    result = compare(a, b)
    assert (result.gained, result.lost, result.difference, result.test) == (5, 1, 0.5, "mcnemar")
    assert result.p_value == pytest.approx(2 * (1 + 6) / 64)
    assert compare(a, a).p_value == 1 and compare(a, a).low == compare(a, a).high == 0
    with pytest.raises(ValueError, match="same rows"):
        compare([1], [1, 0])


def test_comparison_of_macro_scores():
    paths = [("a",), ("a",), ("a",), ("b",)]
    weights = macro_weights(paths)
    assert weights.tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])
    result = compare([0, 0, 0, 0], [1, 0, 0, 1], weights=weights.tolist())
    assert result.difference == pytest.approx(1 / 6 + 1 / 2)
    assert (result.gained, result.test) == (2, "permutation")


def test_permutation_test_is_exact_for_few_clusters():
    assert permutation_test([1, 1, 1]) == pytest.approx(2 / 8)
    assert permutation_test([1, 1, 1], [0, 0, 0]) == 1  # one cluster says nothing
    assert permutation_test([0, 0]) == 1
    rng = np.random.default_rng(0)
    assert permutation_test(rng.choice([-1, 1, 1], size=200)) < 0.01


def test_difference_interval_covers():
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(RUNS):
        a = (rng.random(120) < 0.5).astype(float)
        b = np.where(rng.random(120) < 0.3, rng.random(120) < 0.7, a).astype(float)
        result = compare_fast(a, b)
        hits += result[0] <= 0.3 * 0.2 <= result[1]
    assert covered(hits)


def compare_fast(a, b):
    from scipy import stats

    d = b - a
    half = stats.t.ppf(0.975, len(d) - 1) * clustered_standard_error(d, range(len(d)))
    return d.mean() - half, d.mean() + half


def test_exact_tests_keep_their_level():
    rng = np.random.default_rng(6)
    flips = rng.binomial(30, 0.5, size=RUNS)
    assert sum(mcnemar(int(g), 30 - int(g)) < 0.05 for g in flips) <= 0.05 * RUNS + 40


def test_detectable_effect_has_the_stated_power():
    n = 500
    se = (2 * 0.5 * 0.5 / n) ** 0.5  # independent runs, half of the answers right
    effect = minimum_detectable_effect(se)
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(RUNS):
        difference = rng.binomial(n, 0.5 + effect / 2) / n - rng.binomial(n, 0.5 - effect / 2) / n
        found += abs(difference) > 1.96 * se
    assert abs(found / RUNS - 0.8) < 0.05
