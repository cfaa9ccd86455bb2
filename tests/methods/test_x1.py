"""x1's search: selection, values and their backup as in the release, what tokens earn, and a whole search."""

from __future__ import annotations

import math

import pytest
from make import group
from rounds_kit import letters, prompt

from vlrl.methods.core.critic import RETURNS
from vlrl.methods.papers.x1 import (
    TREE_VALUES,
    X1,
    ReasoningNode,
    X1Advantages,
    back_up_values,
    selection_scores,
)
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import TOKEN_ADVANTAGES
from vlrl.types import Prompt, Rollout, Row

PROMPT = Prompt(Row("r", "q"), ())


def node(q=0.0, visits=1, *children, ended=False):
    made = ReasoningNode(Rollout(PROMPT, []), q=q, visits=visits, ended=ended, children=list(children))
    for child in children:
        child.parent = made
    return made


def test_selection_is_that_of_the_release():
    """N = 5: sqrt(4) (1.25 + ln((5 + 19652) / 19652)) / (1 + N_c), plus q scaled by the tree's -1 and 1."""
    root = node(0.2, 5, node(0.5, 3), node(-0.5, 1))
    factor = 2 * (1.25 + math.log(19657 / 19652))
    wanted = [0.75 + factor / 4, 0.25 + factor / 2]
    assert selection_scores(root, -1.0, 1.0, 1.25, 19652) == pytest.approx(wanted)
    assert selection_scores(node(0.0, 1, node(0.3, 1)), 0.3, 0.3, 1.25, 19652) == [0.3]  # N - 1 = 0


def test_values_are_backed_up_as_in_the_release():
    """Below: q = .9 (2 * 1 + 1 * -.5) / 3 = .45; above: .9 (.45 N + 0 * 1) with N counted before."""
    leaf_a, leaf_b = node(1.0, 2, ended=True), node(-0.5, 1)
    inner = node(0.0, 1, leaf_a, leaf_b)
    other = node(0.0, 1)
    root = node(0.0, 1, inner, other)
    back_up_values(inner, 0.9, 1.0)
    assert inner.q == pytest.approx(0.45) and inner.visits == 2
    assert root.q == pytest.approx(0.9 * 2 * 0.45 / 3) and root.visits == 2 and other.visits == 1
    back_up_values(root, 0.9, 0.5)
    assert root.q == pytest.approx(0.5 * 0.27 + 0.5 * 0.27) and root.visits == 3
    assert not leaf_a.open and leaf_b.open and inner.open and inner.ends() == [leaf_a]


def test_what_tokens_earn():
    """A = gamma q - what stood before; a rollout without values earns nothing."""
    made = group(1.0, 0.0, lengths=[3, 2])
    TREE_VALUES.set(made.rollouts[0], [(0.5, 0.2), (0.5, 0.2), (1.0, 0.5)])
    (rows,) = X1Advantages(gamma=0.9)([made])
    assert TOKEN_ADVANTAGES[made.rollouts[0]] == pytest.approx([0.25, 0.25, 0.4])
    assert rows == [pytest.approx(0.3), 0.0] and RETURNS[made.rollouts[0]] == [0.5, 0.5, 1.0]
    assert TOKEN_ADVANTAGES[made.rollouts[1]] == [0.0, 0.0]


def test_siblings_earn_nothing_together():
    """With rate 1 the value of a node is the visit-weighted mean of gamma q of its children."""
    root = node(0.0, 1, node(1.0, 3, ended=True), node(-1.0, 1, ended=True), node(0.2, 2))
    back_up_values(root, 0.96, 1.0)
    earned = [child.visits * (0.96 * child.q - root.q) for child in root.children]
    assert math.fsum(earned) == pytest.approx(0.0)


def searched(speak, count=4, **words):
    """The group of a search over letters; steps end at ";", what ends in "!" is correct."""
    run = letters(speak)
    run.policy.decode = run.policy.tokenizer.decode
    strategy = X1(**{"delimiter": ";", "guided": False, "simulations": 1, "iterations": 3, **words})
    strategy.setup(run)
    (made,) = strategy([prompt()], [count], run)
    return made, run.asked


def test_a_search_expands_values_and_ends():
    """Sample 0 goes on to "!" after two steps, sample 1 ends at once and wrongly."""

    def speak(request, index):
        begun = "".join(map(chr, request.prefix_ids))
        stopped = ";" in request.sampling.stop
        if index == 1:
            return "?"
        if not stopped:
            return "!"  # a simulation
        return f"{begun.count(';')};" if begun.count(";") < 2 else "!"

    made, asked = searched(speak)
    texts = [rollout.text for rollout in made]
    assert sorted(texts) == ["0;1;!", "0;1;?", "0;?", "?"]
    assert [rollout.correct for rollout in made] == [text.endswith("!") for text in texts]
    assert [entry[3] for entry in asked] == [2, 1, 2, 1, 2]  # children, a simulation, ...
    right = made.rollouts[texts.index("0;1;!")]
    values = TREE_VALUES[right]
    assert len(values) == len(right) and values[-1][0] == 1.0
    assert len({pair for pair in values}) == 3  # one value per step
    assert values[-1][1] == pytest.approx(0.96 * (1 - 1) / 2)  # its siblings: right and wrong, once each


def test_a_search_ends_where_nothing_is_open():
    made, asked = searched(lambda request, index: "yes!", iterations=9)
    assert [rollout.text for rollout in made] == ["yes!", "yes!"] and len(asked) == 1
    deep, _ = searched(lambda request, index: "s;", depth=2, iterations=9)
    assert {rollout.text for rollout in deep} == {"s;s;"} and len(deep) == 4
    few, _ = searched(lambda request, index: f"{index}!", count=1)
    assert [rollout.text for rollout in few] == ["0!"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"iterations": 0}, "must be at least 1"),
        ({"delimiter": ""}, "delimiter a text"),
        ({"gamma": 1.5}, "are shares"),
        ({"guided": False}, "values new steps by nothing"),
    ],
)
def test_searches_that_cannot_be(words, message):
    with pytest.raises(ConfigError, match=message):
        X1(**words)
