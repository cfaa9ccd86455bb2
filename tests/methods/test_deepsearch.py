"""A search over chunks: what is backed up, where it goes on, when it stops, what tokens earn. Numbers by
hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from make import group
from run_kit import View
from tiny import text_run

from vlrl.config import load
from vlrl.methods.papers.deepsearch import (
    VALUES,
    Deepsearch,
    DeepsearchChunkValues,
    SearchNode,
    back_up,
    mean_surprisal,
)
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import TOKEN_ADVANTAGES
from vlrl.trainer.views import StepView
from vlrl.types import Completion, Prompt, Rollout, Row, Sampling

PROMPT = Prompt(Row("r", "q"), ({"role": "user", "content": "q"},))


def chain(*lengths, end_value=0):
    """Nodes of these lengths, one below the other; the last has `end_value`."""
    node = SearchNode(Rollout(PROMPT, []))
    for length in lengths:
        ids = list(range(len(node.rollout) + length))
        node = SearchNode(Rollout(PROMPT, ids, logp=[-1.0] * len(ids)), node, node.depth + 1)
    node.end_value = end_value
    return node


def test_what_is_backed_up():
    """Gains are (i + 1) / (l + 1), the root (i = 0) included: the release's update_recursive."""
    wrong = chain(2, 2, 2, end_value=-1)
    first, second, _ = wrong.path
    back_up(wrong)
    assert [first.parent.q, *(n.q for n in wrong.path)] == [-0.25, -0.5, -0.75, -1.0] and [
        n.visits for n in wrong.path
    ] == [1, 1, 1]
    back_up(wrong)
    assert [n.q for n in wrong.path] == [-1.0, -1.5, -2.0]  # the same sign adds
    right = SearchNode(Rollout(PROMPT, [0] * 5), first, 2, end_value=1)
    back_up(right)
    assert (
        first.q == pytest.approx(2 / 3) and right.q == 1.0 and first.parent.q == pytest.approx(1 / 3)
    )  # a negative q is replaced
    back_up(wrong)
    assert first.q == pytest.approx(2 / 3) and second.q == pytest.approx(-2.25)  # a positive q stays
    assert first.visits == 4 and first.parent.visits == 4
    long = chain(*[1] * 20, end_value=1)
    back_up(long)
    assert long.path[0].q == 0.1 and long.path[1].q == pytest.approx(3 / 21) and long.path[19].q == 1.0


def test_where_the_search_goes_on():
    search = Deepsearch(quality=0.5, uncertainty=0.1, depth_bonus=0.2, depth=4)
    node = chain(2, 1)
    node.parent.q, node.parent.visits = 3.0, 2
    node.rollout.logp = [-9.0, -9.0, -2.0]  # its own token alone
    assert search.priority(node) == pytest.approx(0.5 * math.tanh(1.5) + 0.1 * 2.0 + 0.2 * math.sqrt(2 / 4))
    assert search.priority(node.parent.parent) == 0.0 and mean_surprisal(node.rollout.logp) == pytest.approx(
        20 / 3
    )


def test_what_tokens_earn():
    made = group(
        1.0,
        0.0,
        0.0,
        lengths=[2, 1, 2],
        info=[{VALUES.name: row} for row in ([0.5, 1.0], [-1.0], [0.5, -1.0])],
    )
    (values,) = DeepsearchChunkValues()([made])
    assert values == pytest.approx([0.75 + 1 / 3, -1 + 1 / 3, -0.25 + 1 / 3])
    assert TOKEN_ADVANTAGES[made.rollouts[2]] == pytest.approx([0.5 + 1 / 3, -1 + 1 / 3])


class Talker:
    """Says two tokens a chunk; a path that begins with `right` ends rightly after three chunks, all others
    wrongly."""

    name = "talker"

    def __init__(self, right):
        self.right, self.asked = right, []

    def generate(self, requests):
        for request in requests:
            self.asked.append(len(request.prefix_ids))
            for index in range(request.n):
                ids = [*request.prefix_ids, index + 1, 0]
                finish = "stop" if len(ids) == 6 else "length"
                yield Completion(
                    request,
                    index,
                    ids,
                    [-1.0 - index] * len(ids),
                    "right" if ids[0] == self.right else "wrong",
                    finish,
                )


def searched(right, *, count=2, history=None, **words):
    made = text_run(
        ["methods/deepsearch"],
        [
            "num_minibatches=1",
            *(f"rollout.{key}={value}" for key, value in {"chunk": 2, "overlong": 0, **words}.items()),
        ],
    )
    made.engine = Talker(right)
    made.history.update(history or {})

    def score(groups):
        for rollout in (r for g in groups for r in g):
            rollout.correct = rollout.text.endswith("right")

    view = StepView.between_steps(made)
    view.score = score
    (tree,) = made.rollout([made.prompt_template(made.rows["arithmetic"][0])], [count], view)
    made.policy = None
    return tree, made


def test_a_search_goes_on_until_it_has_its_ends():
    """Down (1, 1, .): two right ends, the likelier is backed up (q 1/4 at the root, 2/4, 3/4). Then (1, 2),
    whose parent has q / N = 0.5 / 2: one more expansion. N of (1) is 2: once as an open node, once backed
    up."""
    tree, made = searched(1)
    assert made.engine.asked == [0, 2, 4, 4] and [r.ids for r in tree] == [
        [1, 0, 1, 0, 1, 0],
        [1, 0, 2, 0, 1, 0],
    ]
    assert VALUES[tree.rollouts[0]] == pytest.approx(
        [math.tanh(1.0)] * 2 + [math.tanh(0.75)] * 2 + [1.0] * 2
    )  # (1) was backed up twice
    assert VALUES[tree.rollouts[1]] == VALUES[tree.rollouts[0]]
    assert tree.rollouts[0].loss_mask is None and tree.rollouts[0].logp[-1] == -1.0


def test_a_search_leaves_wrong_ends_and_returns_to_them_last():
    """Right is what begins with 2; the root's q is -1/4 after the first end, that of (1) -1/2: (2), a child
    of the root, has the better parent."""
    tree, made = searched(2, quality=1.0, depth_bonus=0.0)
    assert (
        made.engine.asked == [0, 2, 4, 2, 4]
        and [r.ids[0] for r in tree] == [1, 2]
        and [r.correct for r in tree] == [False, True]
    )
    assert [VALUES[r][0] for r in tree] == pytest.approx(
        [math.tanh(-0.5) if r.ids[0] == 1 else math.tanh(0.5) for r in tree]
    )
    every, made = searched(9, depth=1, count=3)  # all three end at once: no open node is left
    assert (
        made.engine.asked == [0]
        and [r.ids[0] for r in every] == [1, 2, 3]
        and all(VALUES[r] == [-1.0, -1.0] for r in every)
    )


def test_long_ends_are_punished_and_few_solutions_kept():
    tree, made = searched(
        2, overlong=0.5, quality=1.0, depth_bonus=0.0
    )  # limit 10 tokens: 6 tokens are 1 above 5
    assert VALUES[tree.rollouts[1]][-1] == pytest.approx(1 - 1 / 5)
    row = tree.row.id
    few, several = {}, {}
    Deepsearch(cache=0.5).end_step(SimpleNamespace(answered_groups=[tree], history=few))
    Deepsearch(cache=0.4).end_step(SimpleNamespace(answered_groups=[tree], history=several))
    solutions = json.loads(json.dumps(few[row]["deepsearch"]))
    assert len(solutions) == 1 and not several
    second = load(["methods/deepsearch"]).tree["phases"]["hard"]["rollout"]
    assert second == {"replay": True, "cache": 0.0}
    Deepsearch(**second).end_step(SimpleNamespace(answered_groups=[tree], history=several))
    assert not several  # the second round reads the first one's solutions, and keeps none
    again, made = searched(9, history={row: {"deepsearch": solutions}}, replay=True)
    assert (
        [r.source for r in again] == ["replay", "policy"]
        and again.rollouts[0].ids == tree.rollouts[1].ids
        and made.engine.asked == [0]
    )
    assert VALUES[again.rollouts[0]] == [1.0] * 6 and set(VALUES[again.rollouts[1]]) == {-1.0}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["advantage={name: grpo}", "token_credit={name: uniform}"],
            "requires 'deepsearch.chunk_advantages'.*set advantage",
        ),
        (["rollout={name: independent}"], "requires 'deepsearch.values'.*set rollout"),
        (["token_credit={name: uniform}"], "per_token"),
    ],
)
def test_what_cannot_work_is_refused(words, reason):
    with pytest.raises(ConfigError, match=reason):
        text_run(["methods/deepsearch"], ["num_minibatches=1", *words])
    with pytest.raises(ValueError, match="at least 1"):
        replace(Deepsearch(), depth=0)
    with pytest.raises(ValueError, match="at least 0"):
        replace(Deepsearch(), chunk=-1)


CHUNKS = [(5, 64, 64, 5), (0, 64, 16384, 256), (0, 7, 64, 10), (0, 64, 20, 1), (30, 2, 20, 20)]


@pytest.mark.parametrize(("chunk", "depth", "limit", "expected"), CHUNKS)
def test_a_chunk_is_the_limit_over_the_depth_where_none_is_given(chunk, depth, limit, expected):
    prompt = Prompt(Row("r", "q"), ())
    run = View(sampling=lambda prompt, attempt: Sampling(max_tokens=limit), step=0)
    strategy = Deepsearch(chunk=chunk, depth=depth)
    strategy.setup(run)
    assert strategy.request(SearchNode(Rollout(prompt, [])), prompt, 4, run).sampling.max_tokens == expected
