"""Rollouts that go on from a token of another: what is kept of it, where they branch, and what the stretches
of a tree earn. Numbers by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from make import group, run
from tiny import steps, text_run

from vlrl.methods.common.branching import branch_request, branch_rollout, entropy
from vlrl.methods.papers.cure import BRANCH, Cure, critical
from vlrl.methods.papers.rose import (
    SHARED_PREFIXES,
    Rose,
    RoseSegmentValues,
    semantic_entropy,
    shared_prefixes,
)
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import TOKEN_ADVANTAGES
from vlrl.trainer.views import StepView
from vlrl.types import Completion, Prompt, Rollout, Row, Sampling

LOG = math.log
PROMPT = Prompt(Row("r", "q"), ({"role": "user", "content": "q"},))
OWN = Rollout(
    PROMPT,
    [5, 6, 7, 8],
    logp=[-0.1, -0.2, -0.3, -0.4],
    version=[1, 1, 2, 2],
    temperature=0.7,
    top_logprobs=[{t: -0.5} for t in (5, 6, 7, 8)],
)


def going_on(own=OWN, end=2, trained=True, insert=(), version=2):
    """The rollout [5, 6, *insert, 9, 9], said at temperature 1."""
    request = branch_request(own, end, Sampling(max_tokens=9), 3, n=2, insert=insert)
    ids = [*request.prefix_ids, 9, 9]
    made = Rollout(
        own.prompt,
        ids,
        logp=[-9.0] * (len(ids) - 2) + [-0.6, -0.7],
        version=version,
        top_logprobs=[{} for _ in ids],
    )
    return request, branch_rollout(
        run(make_rollout=lambda c: made), Completion(request, 0, ids, [], "", "stop"), own, end, trained
    )


def test_the_kept_tokens_stay_as_they_were_sampled():
    request, rollout = going_on()
    assert request.prefix_ids == (5, 6) and request.n == 2 and request.sampling.max_tokens == 9
    assert (
        rollout.ids == [5, 6, 9, 9] and rollout.logp == [-0.1, -0.2, -0.6, -0.7] and rollout.loss_mask is None
    )
    assert rollout.version == [1, 1, 2, 2] and rollout.temperature == [0.7, 0.7, 1.0, 1.0]
    assert rollout.top_logprobs == [{5: -0.5}, {6: -0.5}, {}, {}] and OWN.ids == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("mask", "trained", "insert", "expected"),
    [
        (None, False, (), [False, False, True, True]),
        ([False, True, True, True], True, (), [False, True, True, True]),
        (None, True, (4,), [True, True, False, True, True]),
        (None, False, (4,), [False, False, False, True, True]),
    ],
)
def test_what_is_trained_on(mask, trained, insert, expected):
    own = Rollout(PROMPT, [5, 6, 7, 8], logp=[-0.1] * 4, loss_mask=mask)
    _, rollout = going_on(own, trained=trained, insert=insert)
    assert rollout.loss_mask == expected and rollout.version == [0, 0, *[2] * (len(rollout) - 2)]
    assert going_on(own, version=0)[1].version == 0


def test_entropies():
    half = {1: LOG(0.5), 2: LOG(0.25), 3: LOG(0.25)}
    assert entropy(half) == pytest.approx(1.5 * LOG(2)) and entropy({}) == 0 and entropy({1: 0.0}) == 0
    # the two of a quarter mean the same as each other: sum_{i != j} p_i p_j cos = 2 / 16; or the opposite of
    # the first: - 2 (1/8 + 1/8) + 2 / 16
    apart, against = (
        torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0]]),
        torch.tensor([[0.0, 0.0], [3.0, 0.0], [-1.0, 0.0], [-2.0, 0.0]]),
    )
    sure = {1: 0.0}
    assert semantic_entropy([half, sure], apart) == pytest.approx([-(2 / 16) * 1.5 * LOG(2), 0.0], abs=1e-6)
    assert semantic_entropy([half], against) == pytest.approx([(0.5 - 2 / 16) * 1.5 * LOG(2)], abs=1e-6)
    # alike in entropy, unlike in meaning: synonyms score lowest
    synonyms = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    assert (
        semantic_entropy([half], synonyms)[0]
        < semantic_entropy([half], apart)[0]
        < semantic_entropy([half], against)[0]
    )


def test_critical_tokens():
    words, surprise = ["so", " we", ".", "add", "<end>", "two"], [9.0, 1.0, 8.0, 3.0, 7.0, 2.0]
    special = [word.startswith("<") for word in words]
    assert critical(surprise, words, 2, special) == [3, 5] and critical(surprise, words, 9, special) == [
        3,
        5,
        1,
    ]
    assert (
        critical([1.0, 1.0, 1.0], ["aa", "bb", "cc"], 1, [False] * 3) == [1]
        and critical([1.0], ["aa"], 3, [False]) == []
    )


def test_cure_keeps_a_prefix_and_trains_what_is_new():
    made = text_run(["methods/cure"], ["group_size=8", "sampling.max_tokens=8"], engine="hf")
    prompt = made.prompt_template(made.rows["arithmetic"][0])
    whole, short, none = made.rollout([prompt, prompt, prompt], [9, 3, 0], StepView.between_steps(made))
    assert (len(whole), len(short), len(none)) == (9, 3, 0) and not any(BRANCH.on(r) for r in short)
    branches = whole.rollouts[3:]
    assert [BRANCH[r][0] for r in branches] == [
        0,
        0,
        0,
        1,
        1,
        1,
    ]  # 9 = 3 samples, the first two with three branches each
    for rollout in branches:
        place, end = BRANCH[rollout]
        source = whole.rollouts[place]
        assert (
            rollout.ids[:end] == source.ids[:end]
            and rollout.logp[:end] == source.logp[:end]
            and len(rollout) <= 8
        )
        assert (rollout.loss_mask or [True] * len(rollout)) == [t >= end for t in range(len(rollout))]
        assert (
            rollout.logp == pytest.approx(made.engine.score(prompt, rollout.ids), abs=1e-4)
            and rollout.top_logprobs is None
        )
    assert len({tuple(r.ids) for r in branches}) > 1
    made.close()


def test_who_shares_how_much():
    # 1 keeps 4 of 0; 2 begins anew; 3 keeps 2 of 1, and so 2 of 0; 4 keeps 6 of 1: 4 of 0, 2 of 3
    rows = [[]]
    for parent, end in ((0, 4), (-1, 0), (1, 2), (1, 6)):
        rows.append(shared_prefixes(rows, parent, end))
    assert rows == [[], [4], [0, 0], [2, 2, 0], [4, 6, 0, 2]]


def tree(*rewards, lengths, rows):
    made = group(*rewards, lengths=lengths)
    for number, (rollout, row) in enumerate(zip(made, rows)):
        SHARED_PREFIXES.set(rollout, (number, row))
    return made


def test_what_a_stretch_of_a_tree_earns():
    """0: right, 6 tokens; 1 keeps 4 of it and is wrong, 5 tokens; 2 begins anew and is right, 3 tokens.
    V(start) = 2/3, V(4) = 1/2."""
    made = tree(1.0, 0.0, 1.0, lengths=[6, 5, 3], rows=[[], [4], [0, 0]])
    assert RoseSegmentValues(alpha=0.0)([made])[0] == pytest.approx(
        [(4 * (1 / 2 - 2 / 3) + 2 * 0.5) / 6, (4 * (1 / 2 - 2 / 3) - 0.5) / 5, 1 / 3]
    )
    first, second, third = (TOKEN_ADVANTAGES[rollout] for rollout in made)
    assert (
        first == pytest.approx([-1 / 6] * 4 + [0.5] * 2)
        and second == pytest.approx([-1 / 6] * 4 + [-0.5])
        and third == pytest.approx([1 / 3] * 3)
    )
    # the shortest right one has 3 tokens, all its own: the other right one loses (1 - 3 / 6) of every |A|
    RoseSegmentValues(alpha=1.0)([made])
    assert TOKEN_ADVANTAGES[made.rollouts[0]] == pytest.approx([-1 / 6 - 1 / 12] * 4 + [0.25] * 2)
    assert TOKEN_ADVANTAGES[made.rollouts[1]] == second and TOKEN_ADVANTAGES[made.rollouts[2]] == third
    # where their ways part late only the rest counts: 6 and 5 tokens, 4 in common: (1 - 2/3) (1 - (1 - (1 /
    # 2)^2))
    late = tree(1.0, 1.0, 0.0, lengths=[6, 5, 5], rows=[[], [4], [4, 4]])
    RoseSegmentValues(alpha=2.0)([late])
    assert TOKEN_ADVANTAGES[late.rollouts[0]] == pytest.approx([0.0] * 4 + [1 / 12] * 2)
    late.rollouts = late.rollouts[1:]  # one could not be scored
    RoseSegmentValues(alpha=0.0)([late])
    assert TOKEN_ADVANTAGES[late.rollouts[0]] == pytest.approx([0.0] * 4 + [0.5])


def test_rose_grows_a_tree():
    made = text_run(["methods/rose"], ["rollout.epsilon=0", "sampling.max_tokens=8"], engine="hf")
    prompt = made.prompt_template(made.rows["arithmetic"][0])
    found, none = made.rollout([prompt, prompt], [5, 0], StepView.between_steps(made))
    assert len(found) == 5 and len(none) == 0 and [SHARED_PREFIXES[r][0] for r in found] == [0, 1, 2, 3, 4]
    for rollout in found:
        for earlier, kept in zip(found, SHARED_PREFIXES[rollout][1]):
            assert rollout.ids[:kept] == earlier.ids[:kept] and rollout.logp[:kept] == earlier.logp[:kept]
        assert rollout.loss_mask is None and rollout.logp == pytest.approx(
            made.engine.score(prompt, rollout.ids), abs=1e-4
        )
    made.close()


@pytest.mark.parametrize(
    ("part", "parts", "reason"),
    [
        (Cure(), {"group_size": 3}, "too small"),
        (Rose(), {"group_size": 1}, "no tree"),
        (RoseSegmentValues(), {"token_credit": SimpleNamespace(name="uniform")}, "overwrite"),
    ],
)
def test_what_cannot_work_is_refused(part, parts, reason):
    with pytest.raises(ConfigError, match=reason):
        part.check(run(**parts))


def test_an_engine_that_reports_no_alternatives():
    with pytest.raises(ConfigError, match="does not report"):
        Cure().alternatives_of(Rollout(PROMPT, [1]), run(engine=SimpleNamespace(name="openai")))
    for broken in (
        lambda: Cure(branches=0),
        lambda: Rose(epsilon=2.0),
        lambda: RoseSegmentValues(alpha=-1.0),
    ):
        with pytest.raises(ValueError, match="must"):
            broken()


@pytest.mark.parametrize("method", ["cure", "rose"])
def test_presets_train(method):
    assert all(
        metrics["reward/errors"] == 0 for metrics in steps(text_run([f"methods/{method}"], ["group_size=8"]))
    )
