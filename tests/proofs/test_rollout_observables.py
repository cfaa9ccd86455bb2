"""Observables of how rollouts are sampled, by hand on small records."""

from dataclasses import replace

import pytest
from proof_kit.observables import OBSERVABLES, Record, StepRecord
from proof_kit.rollout_observables import sampled_from

from vlrl.types import Group, Prompt, Rollout, Row

PROMPT = Prompt(Row("a", "question", "1"), ({"role": "user", "content": "question"},))


def rollout(ids=(1,), correct=False, logp=(), advantage=0.0, prompt=PROMPT):
    return Rollout(prompt, list(ids), "text", list(logp), correct=correct, advantage=advantage)


def record(*groups):
    made = [Group(PROMPT, list(rollouts)) for rollouts in groups]
    return Record([StepRecord(made, made, {})])


def test_more_rollouts_for_hard_prompts():
    easy, hard = [rollout(correct=True)] * 2, [rollout()] * 6
    assert OBSERVABLES["rollouts_by_accuracy"](record(easy, hard)) == pytest.approx(-1)
    assert OBSERVABLES["rollouts_by_accuracy"](record(easy, hard[:2])) == 0


def test_tokens_in_common():
    seen = record([rollout([1, 2, 3]), rollout([1, 2, 9]), rollout([7]), rollout([1, 2, 9, 9])])
    assert OBSERVABLES["shared_tokens"](seen) == pytest.approx((2 + 0 + 3) / 3)
    assert OBSERVABLES["overlap_of_halves"](
        record([rollout([1, 2]), rollout([3]), rollout([1, 9]), rollout([3])])
    ) == pytest.approx((1 / 2 + 1) / 2)


def test_likelihood_of_the_second_half():
    assert OBSERVABLES["late_likelihood"](
        record([rollout([1, 2, 3, 4], logp=[-2, -4, -1, -2]), rollout([1], logp=[-9])])
    ) == pytest.approx(1.5)


def test_advantages_within_groups():
    solved = [rollout(correct=True, advantage=0.5), rollout(correct=True, advantage=-1.5)]
    mixed = [rollout(correct=True, advantage=4.0), rollout(advantage=9.0)]
    assert OBSERVABLES["advantage_in_solved_groups"](record(solved, mixed)) == pytest.approx(1.0)
    assert OBSERVABLES["advantage_spread_of_correct"](record(solved, mixed)) == pytest.approx(1.0)


def test_prompts_that_were_sampled_from():
    hinted = replace(PROMPT, messages=({"role": "user", "content": "question with a hint"},), prefix="So ")
    seen = record([rollout(prompt=hinted), rollout()])
    assert sampled_from(seen, "hint$") == 0.5
    assert OBSERVABLES["given_characters"](seen) == pytest.approx(1.5)
