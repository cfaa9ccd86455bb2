"""`gen_causal`: queries computed by hand, by the truncated factorisation, and by simulation."""

import itertools
import random

import numpy as np
import pytest
from vlrl_data.generators.causal import LEVELS, CausalGraph, random_graph

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.scoring import GoldError
from vlrl.plugins.stages import Reward, Source
from vlrl.types import Prompt, Rollout, Row

CONFOUNDED = CausalGraph(
    ((), (0,), (0, 1)),
    ({(): 0.5}, {(0,): 0.2, (1,): 0.8}, {(0, 0): 0.1, (0, 1): 0.3, (1, 0): 0.6, (1, 1): 0.9}),
)


def test_conditioning_differs_from_intervening():
    # P(Z=1 | X=1) = 0.8: seeing X = 1 makes the confounder likely; setting it does not
    assert CONFOUNDED.query(2, {}, {1: 1}) == pytest.approx(0.8 * 0.9 + 0.2 * 0.3)
    assert CONFOUNDED.query(2, {1: 1}, {}) == pytest.approx(0.5 * 0.9 + 0.5 * 0.3)


def test_a_counterfactual_by_hand():
    # Y = 1[u < 0.2 or 0.7]. Seen X = 0, Y = 0: u is uniform on [0.2, 1]; with X = 1 it is 1 for u < 0.7
    graph = CausalGraph(((), (0,)), ({(): 0.4}, {(0,): 0.2, (1,): 0.7}))
    assert graph.query(1, {0: 1}, {0: 0, 1: 0}) == pytest.approx(0.5 / 0.8)
    assert graph.query(1, {0: 1}, {0: 0, 1: 1}) == pytest.approx(1.0)


def factorised(graph, target, do, given):
    """P(target = 1 | given) by the truncated factorisation: the product of the tables without those of
    `do`."""
    both = seen = 0.0
    for values in itertools.product((0, 1), repeat=len(graph.parents)):
        if any(values[i] != value for i, value in {**do, **given}.items()):
            continue
        weight = 1.0
        for i, (parents, table) in enumerate(zip(graph.parents, graph.tables)):
            chance = table[tuple(values[p] for p in parents)]
            weight *= 1.0 if i in do else (chance if values[i] else 1 - chance)
        seen += weight
        both += weight * values[target]
    return both / seen


@pytest.mark.parametrize("seed", range(8))
def test_cells_agree_with_the_factorisation(seed):
    graph = random_graph(random.Random(seed), 4, 2)
    for cause, x in itertools.product(range(3), (0, 1)):
        assert graph.query(3, {}, {cause: x}) == pytest.approx(factorised(graph, 3, {}, {cause: x}))
        assert graph.query(3, {cause: x}, {}) == pytest.approx(factorised(graph, 3, {cause: x}, {}))


def test_a_counterfactual_by_simulation():
    graph = random_graph(random.Random(5), 3, 2)
    noise = np.random.default_rng(0).random((15_000, 3))
    seen = [
        tuple(u) for u in noise if graph.values(tuple(u), {})[0] == 1 and graph.values(tuple(u), {})[2] == 0
    ]
    share = np.mean([graph.values(u, {0: 0})[2] for u in seen])
    assert graph.query(2, {0: 0}, {0: 1, 2: 0}) == pytest.approx(share, abs=0.01)


def test_an_impossible_condition_is_an_error():
    with pytest.raises(ValueError, match="probability 0"):
        CausalGraph(((),), ({(): 1.0},)).query(0, {}, {0: 0})


@pytest.mark.parametrize("level", LEVELS)
def test_rows(level):
    made = list(build(Source, {"name": "gen_causal", "count": 12, "levels": [level]})())
    assert made == list(build(Source, {"name": "gen_causal", "count": 12, "levels": [level]})())
    numeric = build(Reward, {"name": "numeric", "abs_tol": 0.01})
    for row in made:
        assert 0 <= row.answer <= 1 and row.meta["level"] == level
        wrong = f"<answer>{(row.answer + 0.5) % 1.0:.3f}</answer>"
        scores = [numeric(Rollout(Prompt(row, ()), [], text)) for text in (row.target, wrong, "garbage", "")]
        assert scores == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "fields", [{"levels": ["causal"]}, {"levels": []}, {"nodes": 1}, {"nodes": 9}, {"most_parents": 0}]
)
def test_impossible_settings_are_refused(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        build(Source, {"name": "gen_causal", **fields})


def test_a_selector_for_every_assignment_of_the_parents():
    """zhichul/rlcausal d9d61324, counterfactual.py: with X = 1 another selector decides, which X = 0, Y = 0
    says nothing about."""
    graph = CausalGraph(((), (0,)), ({(): 0.4}, {(0,): 0.2, (1,): 0.7}))
    assert graph.twin(1, {0: 1}, {0: 0, 1: 0}) == pytest.approx(0.7) and graph.query(
        1, {0: 1}, {0: 0, 1: 0}
    ) == pytest.approx(0.5 / 0.8)
    assert graph.twin(1, {0: 0}, {0: 0, 1: 0}) == 0  # the same assignment: the same selector
    assert graph.twin(1, {0: 1}, {1: 1}) == pytest.approx(
        (0.4 * 0.7 + 0.6 * 0.2 * 0.7) / (0.4 * 0.7 + 0.6 * 0.2)
    )
    with pytest.raises(ValueError, match="probability 0"):
        CausalGraph(((),), ({(): 1.0},)).twin(0, {}, {0: 0})


@pytest.mark.parametrize("seed", range(4))
def test_the_twin_network_agrees_where_nothing_is_counterfactual(seed):
    graph = random_graph(random.Random(seed), 4, 2)
    for cause, x in itertools.product(range(3), (0, 1)):
        assert graph.twin(3, {}, {cause: x}) == pytest.approx(graph.query(3, {}, {cause: x}))
        assert graph.twin(3, {cause: x}, {}) == pytest.approx(graph.query(3, {cause: x}, {}))


def test_rows_in_the_form_of_the_release():
    rows = [
        build(Source, {"name": "gen_causal", "release": True, "nodes": 4, "count": 40}).row(i)
        for i in range(40)
    ]
    assert {row.meta["level"] for row in rows} == set(LEVELS)
    assert all(len(row.answer) == 2 and sum(row.answer) == pytest.approx(1.0) for row in rows)
    assert all(("intervened to set" in row.question) == (row.meta["level"] != LEVELS[0]) for row in rows)
    reward = build(Reward, {"name": "distribution"})
    assert all(reward(Rollout(Prompt(row, ()), [1], text=row.target)) == pytest.approx(1.0) for row in rows)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("[0.25, 0.75]", 1.0),
        ("[0.35, 0.65]", 0.2 + 0.8 * 0.9),
        ("[1.0]", 0.1),
        ("[a, b]", 0.0),
        ("0.75", 0.0),
        ("[3, -2]", 0.2),
        ("[nan, 1]", 0.0),
    ],
)
def test_distribution_by_hand(text, score):
    """zhichul/rlcausal d9d61324, score_strict.py: 0.1 for a list, 0.1 for its length, 0.8 (1 - total
    variation), at least 0."""
    reward = build(Reward, {"name": "distribution"})
    rollout = Rollout(Prompt(Row("a", "?", [0.25, 0.75]), ()), [1], text=f"<answer>{text}</answer>")
    assert reward(rollout) == pytest.approx(score) and reward.correct(rollout, score) == (score == 1.0)
    with pytest.raises(GoldError, match="'x' is not a list of probabilities"):
        reward(Rollout(Prompt(Row("a", "?", "x"), ()), [1], text=f"<answer>{text}</answer>"))
