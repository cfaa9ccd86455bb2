"""pass@k, maj@k and G-Pass@k against closed forms and enumeration."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest

from vlrl.eval.statistics import (
    avg_at_k,
    equivalence_classes,
    g_pass_at_k,
    maj_at_k,
    mean_g_pass_at_k,
    pass_at_k,
)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (10, 3, 1, 0.3),
        (10, 3, 5, 0.9166666667),
        (10, 3, 8, 1.0),
        (64, 1, 16, 0.25),
        (64, 32, 2, 0.7539682540),
        (5, 0, 3, 0.0),
    ],
)
def test_pass_at_k_known_values(n, c, k, expected):
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-10)


def test_pass_at_k_is_the_closed_form_everywhere():
    for n in (1, 2, 7, 16):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            assert pass_at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-12)


def test_pass_at_k_is_not_the_plug_in():
    assert abs(pass_at_k(10, 3, 5) - (1 - 0.7**5)) > 0.08


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 2), (4, 2, 5), (4, 2, 0), (4, -1, 1)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match="need 0 <= c <= n"):
        pass_at_k(n, c, k)


def test_avg_is_macro_over_questions():
    assert avg_at_k([[1, 0, 0, 0], [1]]) == pytest.approx((0.25 + 1) / 2)
    assert avg_at_k([]) == 0


@pytest.mark.parametrize(("tau", "least"), [(0.01, 1), (0.25, 1), (0.5, 2), (0.51, 3), (1.0, 4)])
def test_g_pass_counts_subsets(tau, least):
    samples = [1, 1, 1, 0, 0, 0]
    subsets = list(itertools.combinations(samples, 4))
    assert g_pass_at_k(6, 3, 4, tau) == pytest.approx(sum(sum(s) >= least for s in subsets) / len(subsets))


def test_g_pass_limits():
    assert g_pass_at_k(16, 5, 4, 1e-9) == pytest.approx(pass_at_k(16, 5, 4))
    assert g_pass_at_k(10, 7, 3, 0.1 * 3) == g_pass_at_k(10, 7, 3, 0.3)
    by_hand = 2 / 4 * sum(g_pass_at_k(6, 5, 4, i / 4) for i in (3, 4))
    assert mean_g_pass_at_k(6, 5, 4) == pytest.approx(by_hand)


def brute_majority(classes, scores, k):
    total, number = 0.0, 0
    for chosen in itertools.combinations(range(len(classes)), k):
        votes = Counter(classes[i] for i in chosen if classes[i] is not None)
        number += 1
        if votes:
            top = [name for name, count in votes.items() if count == max(votes.values())]
            total += sum(
                sum(s for c, s in zip(classes, scores) if c == name) / classes.count(name) for name in top
            ) / len(top)
    return total / number


@pytest.mark.parametrize("seed", range(25))
def test_majority_is_the_mean_over_all_subsets(seed):
    rng = random.Random(seed)
    n = rng.randint(1, 8)
    classes = [rng.choice(["a", "b", "c", None]) for _ in range(n)]
    right = rng.choice("abc")
    scores = [float(c == right) for c in classes]
    for k in range(1, n + 1):
        assert maj_at_k(classes, scores, k) == pytest.approx(brute_majority(classes, scores, k), abs=1e-12)


def test_majority_of_all_is_the_vote():
    assert maj_at_k(["a", "a", "b"], [1, 1, 0], 3) == 1
    assert maj_at_k(["a", "b"], [1, 0], 2) == 0.5  # a tie is shared
    assert maj_at_k([None, None, "a"], [0, 0, 1], 3) == 1  # silence never wins
    assert maj_at_k([None], [0], 1) == 0


def test_majority_of_64_is_fast_enough_to_be_exact():
    classes = [i % 7 for i in range(64)]
    value = maj_at_k(classes, [float(c == 0) for c in classes], 8)
    assert 1 / 7 < value < 0.2


def test_equivalence_classes_use_the_given_equality():
    assert equivalence_classes(
        ["1/2", "0.5", None, "3"], lambda a, b: eval_fraction(a) == eval_fraction(b)
    ) == [0, 0, None, 1]
    assert equivalence_classes(["a", "b", "a"]) == [0, 1, 0]


def eval_fraction(text):
    top, _, bottom = text.partition("/")
    return float(top) / float(bottom or 1)


def test_pass_at_k_is_that_of_vlrl_functional():
    """`vlrl.functional` imports torch, which scoring responses must not need; so there are two, and they
    agree."""
    from vlrl import functional

    for n in (1, 3, 8):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            assert pass_at_k(n, c, k) == pytest.approx(functional.pass_at_k(n=n, c=c, k=k), abs=1e-12)
