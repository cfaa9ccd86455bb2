"""A search over chunks: what is backed up, where it goes on, when it stops, what tokens earn. Numbers by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from make import group, run
from tiny import text_run

from vlrl.methods.papers.deepsearch import Deepsearch, DeepsearchChunkValues, Node, back_up, surprise, valued
from vlrl.registry import ConfigError
from vlrl.types import Completion, Prompt, Rollout, Row

PROMPT = Prompt(Row("r", "q"), ({"role": "user", "content": "q"},))


def chain(*lengths, worth=0):
    """Nodes of these lengths, one below the other; the last has `worth`."""
    node = Node(Rollout(PROMPT, []))
    for length in lengths:
        ids = list(range(len(node.rollout) + length))
        node = Node(Rollout(PROMPT, ids, logp=[-1.0] * len(ids)), node, node.depth + 1)
    node.worth = worth
    return node


def test_what_is_backed_up():
    wrong = chain(2, 2, 2, 2, worth=-1)
    first, second, third, _ = wrong.path
    back_up(wrong)
    assert [n.q for n in wrong.path] == [-0.25, -0.5, -0.75, 0.0] and [n.visits for n in wrong.path] == [1, 1, 1, 0]
    back_up(wrong)
    assert [n.q for n in (first, second, third)] == [-0.5, -1.0, -1.5]  # the same sign adds
    right = Node(Rollout(PROMPT, [0] * 5), second, 3, worth=1)
    back_up(right)
    assert first.q == pytest.approx(1 / 3) and second.q == pytest.approx(2 / 3)  # what was negative is forgotten
    back_up(wrong)
    assert first.q == pytest.approx(1 / 3) and third.q == pytest.approx(-2.25)  # what was right once stays
    long = chain(*[1] * 20, worth=1)
    back_up(long)
    assert long.path[0].q == 0.1 and long.path[1].q == 0.1 and long.path[2].q == 0.15
    values = valued(right).info["q"]
    assert values == pytest.approx([math.tanh(1 / 3)] * 2 + [math.tanh(2 / 3)] * 2 + [1.0])


def test_where_the_search_goes_on():
    search = Deepsearch(quality=0.5, uncertainty=0.1, deep=0.2, depth=4)
    node = chain(2, 1)
    node.parent.q, node.parent.visits = 3.0, 2
    node.rollout.logp = [-9.0, -9.0, -2.0]  # its own token alone
    assert search.priority(node) == pytest.approx(0.5 * math.tanh(1.5) + 0.1 * 2.0 + 0.2 * math.sqrt(2 / 4))
    assert search.priority(node.parent.parent) == 0.0 and surprise(node.rollout) == pytest.approx(20 / 3)


def test_what_tokens_earn():
    made = group(1.0, 0.0, 0.0, lengths=[2, 1, 2], info=[{"q": [0.5, 1.0]}, {"q": [-1.0]}, {"q": [0.5, -1.0]}])
    (values,) = DeepsearchChunkValues()([made])
    assert values == pytest.approx([0.75 + 1 / 3, -1 + 1 / 3, -0.25 + 1 / 3])
    assert made.rollouts[2].info["token_advantages"] == pytest.approx([0.5 + 1 / 3, -1 + 1 / 3])


class Talker:
    """Says two tokens a chunk; a path of letters below `right` ends rightly after three chunks, all others wrongly."""

    name = "talker"

    def __init__(self, right):
        self.right, self.asked = right, []

    def generate(self, requests):
        for request in requests:
            self.asked.append(len(request.prefix_ids))
            assert request.sampling.max_tokens == len(request.prefix_ids) + 2
            for index in range(request.n):
                ids = [*request.prefix_ids, index + 1, 0]
                finish = "stop" if len(ids) == 6 else "length"
                yield Completion(request, index, ids, [-1.0 - index] * len(ids), "right" if ids[0] == self.right else "wrong", finish)


def searched(right, **words):
    made = text_run(["methods/deepsearch"], [f"strategy.{key}={value}" for key, value in {"chunk": 2, **words}.items()])
    made.engine = Talker(right)
    made.score = lambda groups: [r.rewards.update(arithmetic=float(r.text.endswith("right"))) for g in groups for r in g]
    (tree,) = made.strategy([made.scaffold(made.rows["arithmetic"][0])], [2], made)
    made.policy = None
    return tree, made.engine.asked


def test_a_search_stops_with_a_right_end():
    """The first path down (1, 1, .) has two right ends: three expansions, and that was all."""
    tree, asked = searched(1)
    assert asked == [0, 2, 4] and [r.ids for r in tree] == [[1, 0, 1, 0, 1, 0], [1, 0, 1, 0, 2, 0]]
    assert tree.rollouts[0].info["q"] == pytest.approx([math.tanh(1 / 3)] * 2 + [math.tanh(2 / 3)] * 2 + [1.0] * 2)
    assert tree.rollouts[1].info["q"] == tree.rollouts[0].info["q"]
    assert tree.rollouts[0].loss_mask is None and tree.rollouts[0].logp == [-1.0] * 6


def test_a_search_goes_on_elsewhere_after_wrong_ends():
    """Right is what begins with 2. Below 1 everything was wrong: q of (1) is -1/3, and its open child has the worse parent: (2) comes next."""
    tree, asked = searched(2, quality=1.0, deep=0.0)
    assert asked == [0, 2, 4, 2, 4] and [r.ids[0] for r in tree] == [1, 1, 2, 2]
    assert [r.info["q"][0] for r in tree] == pytest.approx([math.tanh(-1 / 3)] * 2 + [math.tanh(1 / 3)] * 2)
    assert len(searched(9, rounds=1)[0]) == 2 and len(searched(9, rounds=99)[0]) == 8  # all of the tree


def test_depth_and_length_end_a_path():
    tree, asked = searched(1, depth=2)
    assert asked == [0, 2, 2] and [r.finish for r in tree] == ["length"] * 4 and all(r.info["q"][-1] == -1.0 for r in tree)


@pytest.mark.parametrize(
    ("part", "parts", "reason"),
    [
        (Deepsearch(), {"advantage": SimpleNamespace(name="grpo")}, "does not read"),
        (Deepsearch(slot="b"), {"advantage": DeepsearchChunkValues(), "rewards": {"a": 1}}, "known: a"),
        (DeepsearchChunkValues(), {"strategy": SimpleNamespace(name="independent")}, "does not leave"),
        (DeepsearchChunkValues(), {"strategy": Deepsearch(), "credit": SimpleNamespace(name="uniform")}, "overwrite"),
    ],
)
def test_what_cannot_work_is_refused(part, parts, reason):
    with pytest.raises(ConfigError, match=reason):
        part.check(run(**parts))
    with pytest.raises(ValueError, match="at least 1"):
        replace(Deepsearch(), chunk=0)
