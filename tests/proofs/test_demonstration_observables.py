"""Observables of demonstrations, likelihood and changed weights, by hand on small records."""

import pytest
import torch
from proof_kit.observables import OBSERVABLES, Record, StepRecord
from proof_kit.prove import changed_share

from vlrl.types import Group, Prompt, Rollout, Row


def rollout(source="policy", ids=1, correct=False, advantage=0.0, logp=()):
    row = Row("r", "question", "1", task="sums")
    prompt = Prompt(row, ({"role": "user", "content": row.question},))
    return Rollout(
        prompt, [1] * ids, "text", source=source, correct=correct, advantage=advantage, logp=list(logp)
    )


def record(rollouts, gradients=(), changed=None):
    groups = [Group(rollouts[0].prompt, rollouts)]
    return Record(
        [
            StepRecord(
                groups, groups, {id(one): list(values) for one, values in zip(rollouts, gradients)}, changed
            )
        ]
    )


def test_advantage_and_gradient_of_demonstrations():
    rollouts = [
        rollout("expert", 2, advantage=0.5),
        rollout("replay", 1, advantage=1.5),
        rollout(ids=2, advantage=-2.0),
    ]
    seen = record(rollouts, [[0.5, -0.1], [0.3], [2.0, -1.0]])
    assert OBSERVABLES["advantage_of_demonstrations"](seen) == pytest.approx(1.0)
    assert OBSERVABLES["gradient_of_demonstrations"](seen) == pytest.approx(0.3 / 1.5)
    assert OBSERVABLES["gradient_of_demonstrations"](record(rollouts)) == 0


def test_likelihood_is_per_token():
    assert OBSERVABLES["likelihood"](
        record([rollout(logp=[-1.0, -2.0]), rollout(logp=[-6.0]), rollout("expert")])
    ) == pytest.approx(-3.0)


def test_length_of_what_is_trained():
    rollouts = [rollout(ids=2, correct=True), rollout(ids=4, correct=True), rollout(ids=6), rollout(ids=3)]
    seen = record(rollouts, [[1.0, 1.0], [0.0] * 4, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0], [1.0] * 3])
    assert OBSERVABLES["trained_length_gap"](seen) == pytest.approx(
        4.5 - 2
    )  # the correct rollout of four tokens has no gradient


def test_share_of_changed_weights():
    before = [torch.zeros(2, 2), torch.ones(4)]
    assert changed_share(before, [torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.ones(4)]) == pytest.approx(
        1 / 8
    )
    first, second = record([rollout()]), record([rollout()], changed=0.25)
    assert (
        OBSERVABLES["changed_weights"](Record([*first.steps, *second.steps])) == 0.25
        and OBSERVABLES["changed_weights"](first) == 0
    )
