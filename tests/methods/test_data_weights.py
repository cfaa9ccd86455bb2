"""PF-PPO's ranks, Light-IF's two terms, DEPO's explorability and sampler. Numbers by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from make import gradient, group, inputs, run
from tiny import steps, text_run

from vlrl.methods.core.critic import CRITIC_WEIGHT
from vlrl.methods.papers.depo import (
    KEY,
    Depo,
    DepoDiverse,
    DepoExplorability,
    explorability,
    greedy_dpp,
    page_rank,
    question_features,
    retained,
)
from vlrl.methods.papers.light_if import LightIfCovarianceEntropy, LightIfSurpriseNll
from vlrl.methods.papers.pf_ppo import PfPpo
from vlrl.plugins.registry import ConfigError
from vlrl.types import Row


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ("best_worst", [2, 0, 0, 2, 1, 1]),  # 4 / 2 each; a group of two keeps both
        (
            "best_random",
            [4 / 7, 4 / 7, 4 / 7, 16 / 7, 0.4, 1.6],
        ),  # 0.1 and 0.4 of 0.7; of equal rewards the last is the best
        ("best", [0, 0, 0, 4, 0, 2]),
    ],
)
def test_responses_that_count(keep, expected):
    x = inputs([[-1.0]] * 6, reward=[0.0, 2.0, 1.0, 2.0, 1.0, 1.0], group_of=[0, 0, 0, 0, 1, 1])
    assert PfPpo(keep)(x)[:, 0].tolist() == pytest.approx(expected)
    first = group(0.0, 2.0, 1.0, 2.0)
    PfPpo(keep).prepare([first])
    assert [CRITIC_WEIGHT[r] for r in first] == pytest.approx(expected[:4])  # the critic draws alike


def test_entropy_by_covariance():
    """Two rollouts of two tokens. log pi: -1 -3 | -2 -2 (mean -2), A: 1 | -1 (mean 0): cov = 1 -1 | 0 0."""
    x = inputs([[-1.0, -3.0], [-2.0, -2.0]], advantage=[1.0, -1.0], entropy=[[2.0, 1.0], [1.0, 1.0]])
    out = LightIfCovarianceEntropy(alpha=2.0, max_coef=1.5)(x)
    first = math.e / (math.e + 1 / math.e)  # 0.8808
    assert out.metrics["entropy_coef"][0].tolist() == pytest.approx([1.5, 2 * (1 - first)])
    assert out.metrics["entropy_coef"][1].tolist() == [1.0, 1.0]
    assert (
        out.loss[0].tolist() == pytest.approx([-3.0, -2 * (1 - first)]) and not out.loss.requires_grad
    )  # the entropy is given here


def test_a_cold_start_on_surprises():
    """delta = -log pi - 0.5 H: 2, 1.5, 0.25, 1 -> the half is the first two; each counts 4 / 2 times."""
    x = inputs([[-3.0, -2.0, -0.5, -1.0]], entropy=[[2.0, 1.0, 0.5, 0.0]])
    out = LightIfSurpriseNll(rho=0.5, share=0.5)(x)
    assert out.loss[0].tolist() == [6.0, 4.0, 0.0, 0.0] and out.loss.mean() == 2.5  # the mean of 3 and 2
    assert gradient(out.loss, x)[0].tolist() == [-2.0, -2.0, 0.0, 0.0]
    assert out.metrics["chosen"][0].tolist() == [1.0, 1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="share"):
        LightIfSurpriseNll(share=0.0)


@pytest.mark.parametrize(
    ("right", "entropies", "expected"),
    [
        (
            [1, 1, 0, 0],
            [0.2, 0.4, 0.5, 0.7],
            0.6 + 0.5,
        ),  # A = +-1; bound 2 * 0.3 = 0.6, so 0.7 counts nothing
        ([1, 0, 0, 0], [0.5, 1.0, 1.0, 1.1], 0.75 / math.sqrt(3 / 16) * 0.5 + 0.25 / math.sqrt(3 / 16) * 2.0),
        ([1, 1], [0.5, 0.5], 0.0),
        ([0, 0], [0.5, 0.5], 0.0),
        ([], [], 0.0),
    ],
)
def test_explorability(right, entropies, expected):
    assert explorability([bool(r) for r in right], entropies, ratio=2.0) == pytest.approx(expected)


def test_what_is_kept_of_visits():
    callback, made = DepoExplorability(keep=2), run()
    callback.setup(made)
    visited = group(1.0, 0.0, name="a", lengths=[2, 1])
    for value in (0.2, 0.4, 0.6):
        visited.rollouts[0].signals, visited.rollouts[1].signals = (
            {"entropy": [value, value]},
            {"entropy": [value]},
        )
        logged = callback(made, [visited, group(name="b")])
    assert made.history["a"][KEY]["visits"] == 3 and made.history["a"][KEY]["last"] == pytest.approx(
        [0.8, 1.2]
    )
    assert logged["mean"] == pytest.approx(1.2)
    with pytest.raises(ConfigError, match="keep"):
        DepoExplorability(keep=0)


def test_who_is_retained():
    rows = [Row(name, "?") for name in "abcde"]
    history = {
        name: {KEY: {"last": [score], "visits": visits}}
        for name, score, visits in (("a", 0.1, 5), ("b", 0.9, 2), ("c", 0.5, 1), ("d", 0.5, 3))
    }
    assert [row.id for row in retained(rows, history, 3, 0)] == [
        "e",
        "b",
        "c",
    ]  # e was never seen; c has fewer visits than d
    assert [row.id for row in retained(rows, history, 3, 2)] == [
        "e",
        "c",
        "b",
    ]  # after e: the least visited of the others


def test_share_falls_by_epochs():
    sampler = Depo(initial_share=0.9, decay=0.3, min_share=0.4)
    sampler.setup(run(rows={"main": [Row(str(i), "?") for i in range(8)]}, source_weights={}, seed=0))
    shares = []
    for _ in range(4):
        shares.append(sampler.share())
        sampler.state.position += 8
    assert shares == pytest.approx([1.0, 0.6, 0.4, 0.4])
    sampler.state.position = 8
    assert len(sampler(3)) == 3 and sampler.state.position == 13  # 3 of the next 5
    with pytest.raises(ConfigError, match="min_share"):
        Depo(min_share=0.0)


@pytest.mark.parametrize("method", ["depo", "pf_ppo", "light_if"])
def test_presets_train(method):
    phase = {"light_if": ["rewards.rules=null"], "depo": ["select=null"]}.get(method, [])
    metrics = steps(text_run([f"methods/{method}"], ["data.train.arithmetic.count=4", *phase]), 3)[-1]
    assert metrics.get("grad_norm", 0.0) > 0 or metrics["zero_variance"] > 0
    assert "data/share" not in metrics or metrics["data/share"] == pytest.approx(
        0.7
    )  # 4 + 4 + 5 rows were looked at: the fourth epoch


def test_depo_needs_its_callback():
    with pytest.raises(ConfigError, match="requires 'depo.explorability'.*set callbacks"):
        text_run(["methods/depo"], ["callbacks=null"])


def test_diverse_rows_by_hand():
    """Two equal rows add nothing to each other; the second choice of a kernel is the row with the largest
    remaining volume."""
    kernel = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.5]])
    assert greedy_dpp(kernel, 3) == [0, 2]
    kernel = np.array(
        [[2.0, 1.0, 0.2], [1.0, 1.5, 0.0], [0.2, 0.0, 1.2]]
    )  # after row 0: 1.5 - 1/2 = 1, 1.2 - 0.04/2 = 1.18
    assert greedy_dpp(kernel, 2) == [0, 2]
    for size in (2, 3):
        best = greedy_dpp(kernel, size)
        assert np.linalg.det(kernel[np.ix_(best, best)]) > 0
    star = np.array([[1.0, 0.9, 0.9], [0.9, 1.0, 0.0], [0.9, 0.0, 1.0]])
    assert page_rank(star).mean() == pytest.approx(1.0) and page_rank(star).argmax() == 0
    features = question_features(["what is 1+1", "what is 1+1", "where does Ada live?"])
    assert features[0] @ features[1] == pytest.approx(1.0) and features[0] @ features[2] < 0.5


def test_the_offline_half_takes_a_fifth_of_medium_difficulty():
    rows = [
        Row(f"r{i}", f"question {i} {'abcdefgh'[i % 8] * 5}", "x", meta={"pass_rate": (i % 5) / 4})
        for i in range(40)
    ]
    chosen = DepoDiverse(diverse=1.0, share=0.2, width=0.05)(rows)
    assert len(chosen) == 8 and all(row.meta["pass_rate"] == 0.5 for row in chosen)
    assert [row.id for row in DepoDiverse()(rows)] == [row.id for row in DepoDiverse()(rows)] and len(
        DepoDiverse()(rows)
    ) == 8
    twins = [Row(f"t{i}", "the same", "x") for i in range(5)] + [Row("other", "something else", "x")]
    assert "other" in {row.id for row in DepoDiverse(diverse=0.4, share=0.4)(twins)}
    with pytest.raises(ConfigError, match="share"):
        DepoDiverse(share=0.9)
