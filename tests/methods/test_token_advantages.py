"""Advantages that are written per token."""

from __future__ import annotations

from math import exp
from types import SimpleNamespace

import pytest
from make import group, run
from tiny import text_run

from vlrl.methods.common.step_scores import STEP_SCORES
from vlrl.methods.core.advantage import whiten_rows
from vlrl.methods.core.token_credit import PER_TOKEN_CREDIT
from vlrl.methods.papers.capo import CAPO, CRITIQUES, STEP_ENDS
from vlrl.methods.papers.pure import Pure, softmin_rewards
from vlrl.methods.papers.spae import SPAE
from vlrl.plugins.registry import ConfigError


def steps(g, *rows):
    for rollout, row in zip(g, rows, strict=True):
        STEP_SCORES.set(rollout, row)
    return g


def tokens(groups):
    return [rollout.info["token_advantages"] for g in groups for rollout in g]


def whitened(*rows):
    flat = [v for row in rows for v in row]
    centre = sum(flat) / len(flat)
    spread = (sum((v - centre) ** 2 for v in flat) / len(flat)) ** 0.5
    return [pytest.approx([(v - centre) / spread for v in row]) for row in rows]


def test_whitened_tokens():
    rows = [[1.0, 3.0], [5.0]]
    whiten_rows(rows, group(0, 0, lengths=[2, 1]).rollouts, eps=0.0)
    assert rows[0][1] == 0.0 and rows[0][0] == pytest.approx(-(1.5**0.5)) and rows[1] == [-rows[0][0]]
    rows = [[2.0, 2.0]]
    whiten_rows(rows, group(0, lengths=[2]).rollouts)
    assert rows == [[0.0, 0.0]]
    rows = [
        [1.0, 99.0, 3.0],
        [5.0],
    ]  # a tool's token has no part in mean and variance, and stays without advantage
    whiten_rows(rows, group(0, 0, lengths=[3, 1], loss_mask=[[True, False, True], None]).rollouts, eps=0.0)
    assert rows == [[pytest.approx(-(1.5**0.5)), 0.0, 0.0], [pytest.approx(1.5**0.5)]]


def test_spae():
    # rises 0, 0.4, 0.2 and 0, -0.4: scaled to 0..1 they are 0.5, 1, 0.75 and 0.5, 0
    groups = [steps(group(1, 0, lengths=[5, 4]), [(1, 0.55), (2, 0.95), (4, 1.15)], [(1, 0.2), (2, -0.2)])]
    centre = (exp(0.5) + exp(1) + exp(0.75) + exp(0.5) + 1) / 5
    once, twice = 1 - 0.5 * (1 - exp(-1)), 1 - 0.5 * (1 - exp(-2))
    right = [
        0.5 + 0.5 * (exp(0.5) - centre),
        0.5 + 0.5 * (exp(1) - centre),
        *[0.5 * once + 0.5 * (exp(0.75) - centre)] * 2,
        0.5 * twice,
    ]
    wrong = [-0.5 + 0.5 * (exp(0.5) - centre), -0.5 + 0.5 * (1 - centre), -0.5, -0.5]
    values = SPAE()(groups)
    assert tokens(groups) == whitened(right, wrong)
    assert values[0] == pytest.approx([sum(row) / len(row) for row in tokens(groups)])


def test_spae_without_steps_is_the_centred_reward():
    groups = [steps(group(1, 0, lengths=[2, 2]), [], [])]
    SPAE()(groups)
    assert tokens(groups) == [pytest.approx([1.0, 1.0]), pytest.approx([-1.0, -1.0])]


def test_spae_says_what_it_needs():
    samples = SimpleNamespace(samples=True)
    SPAE().check(run(capabilities=(PER_TOKEN_CREDIT,), rollout=samples))
    with pytest.raises(ConfigError, match="which token_credit 'uniform' would overwrite"):
        SPAE().check(run(token_credit=SimpleNamespace(name="uniform"), rollout=samples))
    with pytest.raises(ConfigError, match="requires 'spae.potentials'.*rollout: .name: spae.probing"):
        text_run(["methods/spae"], ["rollout={name: independent}"])


def test_softmin_weights():
    w = exp(-1.0)
    assert (
        softmin_rewards([0.0, 1.0], 1.0) == pytest.approx([0.0, w / (1 + w)])
        and softmin_rewards([], 1.0) == []
    )
    assert sum(softmin_rewards([0.3, 0.9, -0.4], 0.01)) == pytest.approx(-0.4)


SECOND, THIRD = (
    exp(-1) / (1 + exp(-1)),
    0.6 * exp(-0.6) / (2 + exp(-0.6)),
)  # r' of the scores 1, 0 and of 0, 0, 0.6
PER_TOKEN = {  # tokens of the steps without their last ones, and the others' r' per token or per step
    "token": ([1, 2], [2, 1, 1], THIRD / 7, SECOND / 6),
    "step": ([1, 1], [1, 1, 1], THIRD / 3, SECOND / 2),
}


@pytest.mark.parametrize("baseline", list(PER_TOKEN))
@pytest.mark.parametrize("mask_ends", [True, False])
def test_pure_gives_the_return_of_the_worst_step(baseline, mask_ends):
    g = steps(group(1, 0, lengths=[6, 7]), [(2, 1.0), (5, 0.0)], [(3, 0.0), (5, 0.0), (7, 0.6)])
    Pure(temperature=1.0, outcome=0.1, baseline=baseline, mask_ends=mask_ends)([g])
    widths_a, widths_b, b_a, b_b = PER_TOKEN[baseline]
    first, second = 0.1 + SECOND - sum(widths_a) * b_a, 0.1 - widths_a[1] * b_a
    one = [first, first, second, second, second, 0.1]  # the last token is behind the last step
    two = [-0.1 + THIRD - sum(widths_b[k:]) * b_b for k in (0, 0, 0, 1, 1, 2, 2)]
    ends = [{1, 4}, {2, 4, 6}] if mask_ends else [set(), set()]
    kept = [[v for t, v in enumerate(row) if t not in end] for row, end in zip((one, two), ends)]
    expected = [iter(row.expected) for row in whitened(*kept)]
    assert tokens([g]) == [
        pytest.approx([0.0 if t in end else next(values) for t in range(len(row))])
        for row, end, values in zip((one, two), ends, expected)
    ]


def test_pure_without_step_scores_is_the_outcome():
    groups = [group(1, 0, lengths=[2, 2])]
    Pure()(groups)
    assert tokens(groups) == [pytest.approx([1.0, 1.0]), pytest.approx([-1.0, -1.0])]
    with pytest.raises(ConfigError, match="per_token"):
        Pure().check(run(token_credit=SimpleNamespace(name="uniform"), rollout=SimpleNamespace(samples=True)))


def judged(critiques, step_ends):
    """The annotations of a judged rollout."""
    return {CRITIQUES.name: critiques, STEP_ENDS.name: step_ends}


@pytest.mark.parametrize(("vote", "wrong"), [("majority", {1}), ("union", {0, 1}), ("intersection", set())])
def test_capo_votes(vote, wrong):
    g = group(1, 0, lengths=[4, 2], info=[judged([[1], [0, 1], []], [1, 3, 4]), {}])
    assert CAPO(vote=vote).wrong_steps(g.rollouts[0]) == wrong
    CAPO(vote=vote)([g, group(1, 1)])
    assert tokens([g]) == whitened([2.0 - (0 in wrong), *[2.0 - (1 in wrong)] * 2, 2.0], [0.0, 0.0])


def test_capo_half_of_the_readings_are_a_majority():
    g = group(0, lengths=[2], info=[judged([[0], []], [1, 2])])
    CAPO()([g])
    assert tokens([g]) == [pytest.approx([-1.0, 1.0])]
