"""A search over chunks: what is backed up, where it goes on, when it stops, what tokens earn. Numbers by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from make import group
from tiny import text_run

from vlrl.methods.papers.deepsearch import VALUES, Deepsearch, DeepsearchChunkValues, Node, back_up, mean_surprisal, with_values
from vlrl.registry import ConfigError
from vlrl.stages import TOKEN_ADVANTAGES
from vlrl.types import Completion, Prompt, Rollout, Row

PROMPT = Prompt(Row("r", "q"), ({"role": "user", "content": "q"},))


def chain(*lengths, end_value=0):
    """Nodes of these lengths, one below the other; the last has `end_value`."""
    node = Node(Rollout(PROMPT, []))
    for length in lengths:
        ids = list(range(len(node.rollout) + length))
        node = Node(Rollout(PROMPT, ids, logp=[-1.0] * len(ids)), node, node.depth + 1)
    node.end_value = end_value
    return node


def test_what_is_backed_up():
    wrong = chain(2, 2, 2, 2, end_value=-1)
    first, second, third, _ = wrong.path
    back_up(wrong)
    assert [n.q for n in wrong.path] == [-0.25, -0.5, -0.75, 0.0] and [n.visits for n in wrong.path] == [1, 1, 1, 0]
    back_up(wrong)
    assert [n.q for n in (first, second, third)] == [-0.5, -1.0, -1.5]  # the same sign adds
    right = Node(Rollout(PROMPT, [0] * 5), second, 3, end_value=1)
    back_up(right)
    assert first.q == pytest.approx(1 / 3) and second.q == pytest.approx(2 / 3)  # a negative q is replaced
    back_up(wrong)
    assert first.q == pytest.approx(1 / 3) and third.q == pytest.approx(-2.25)  # a positive q stays
    long = chain(*[1] * 20, end_value=1)
    back_up(long)
    assert long.path[0].q == 0.1 and long.path[1].q == 0.1 and long.path[2].q == 0.15
    values = VALUES[with_values(right)]
    assert values == pytest.approx([math.tanh(1 / 3)] * 2 + [math.tanh(2 / 3)] * 2 + [1.0])


def test_where_the_search_goes_on():
    search = Deepsearch(quality=0.5, uncertainty=0.1, depth_bonus=0.2, depth=4)
    node = chain(2, 1)
    node.parent.q, node.parent.visits = 3.0, 2
    node.rollout.logp = [-9.0, -9.0, -2.0]  # its own token alone
    assert search.priority(node) == pytest.approx(0.5 * math.tanh(1.5) + 0.1 * 2.0 + 0.2 * math.sqrt(2 / 4))
    assert search.priority(node.parent.parent) == 0.0 and mean_surprisal(node.rollout.logp) == pytest.approx(20 / 3)


def test_what_tokens_earn():
    made = group(1.0, 0.0, 0.0, lengths=[2, 1, 2], info=[{VALUES.name: row} for row in ([0.5, 1.0], [-1.0], [0.5, -1.0])])
    (values,) = DeepsearchChunkValues()([made])
    assert values == pytest.approx([0.75 + 1 / 3, -1 + 1 / 3, -0.25 + 1 / 3])
    assert TOKEN_ADVANTAGES[made.rollouts[2]] == pytest.approx([0.5 + 1 / 3, -1 + 1 / 3])


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
    made = text_run(["methods/deepsearch"], [f"rollout.{key}={value}" for key, value in {"chunk": 2, **words}.items()])
    made.engine = Talker(right)

    def score(groups):
        for rollout in (r for g in groups for r in g):
            rollout.correct = rollout.text.endswith("right")

    made.score = score
    (tree,) = made.rollout([made.prompt_template(made.rows["arithmetic"][0])], [2], made)
    made.policy = None
    return tree, made.engine.asked


def test_a_search_stops_with_a_right_end():
    """The first path down (1, 1, .) has two right ends: three expansions, and that was all."""
    tree, asked = searched(1)
    assert asked == [0, 2, 4] and [r.ids for r in tree] == [[1, 0, 1, 0, 1, 0], [1, 0, 1, 0, 2, 0]]
    assert VALUES[tree.rollouts[0]] == pytest.approx([math.tanh(1 / 3)] * 2 + [math.tanh(2 / 3)] * 2 + [1.0] * 2)
    assert VALUES[tree.rollouts[1]] == VALUES[tree.rollouts[0]]
    assert tree.rollouts[0].loss_mask is None and tree.rollouts[0].logp == [-1.0] * 6


def test_a_search_goes_on_elsewhere_after_wrong_ends():
    """Right is what begins with 2. Below 1 everything was wrong: q of (1) is -1/3, and its open child has the worse parent: (2) comes next."""
    tree, asked = searched(2, quality=1.0, depth_bonus=0.0)
    assert asked == [0, 2, 4, 2, 4] and [r.ids[0] for r in tree] == [1, 1, 2, 2]
    assert [VALUES[r][0] for r in tree] == pytest.approx([math.tanh(-1 / 3)] * 2 + [math.tanh(1 / 3)] * 2)
    assert len(searched(9, rounds=1)[0]) == 2 and len(searched(9, rounds=99)[0]) == 8  # all of the tree


def test_depth_and_length_end_a_path():
    tree, asked = searched(1, depth=2)
    assert asked == [0, 2, 2] and [r.finish for r in tree] == ["length"] * 4 and all(VALUES[r][-1] == -1.0 for r in tree)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["advantage={name: grpo}", "token_credit={name: uniform}"], "requires 'deepsearch.chunk_advantages'.*set advantage"),
        (["rollout={name: independent}"], "requires 'deepsearch.values'.*set rollout"),
        (["token_credit={name: uniform}"], "per_token"),
    ],
)
def test_what_cannot_work_is_refused(words, reason):
    with pytest.raises(ConfigError, match=reason):
        text_run(["methods/deepsearch"], words)
    with pytest.raises(ValueError, match="at least 1"):
        replace(Deepsearch(), chunk=0)
