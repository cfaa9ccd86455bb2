"""Interleaved reasoning's advantage: credit for steps counts while the accuracy of batches does not fall."""

import json

import pytest
from make import end_step, group, run

from vlrl.methods.papers.interleaved_reasoning import InterleavedReasoning
from vlrl.plugins.registry import ConfigError


def batch(*correct):
    """A group with rewards 3 or -0.5; the first rollout of it has 0.5 credit."""
    made = group(*(3.0 if right else -0.5 for right in correct))
    for place, (rollout, right) in enumerate(zip(made, correct, strict=True)):
        rollout.correct, rollout.outcome = bool(right), float(right)
        rollout.rewards["steps"] = 0.5 if place == 0 else 0.0
    return made


def advantage(*scores):
    """GRPO's, with the unbiased std."""
    mean = sum(scores) / len(scores)
    std = (sum((s - mean) ** 2 for s in scores) / (len(scores) - 1)) ** 0.5
    return [(s - mean) / (std + 1e-6) for s in scores]


def made(**fields):
    found = InterleavedReasoning(**fields)
    found.setup(run())
    return found


def test_credit_needs_a_batch_that_is_not_worse():
    estimator = made()
    assert estimator([batch(1, 1, 0)])[0] == pytest.approx(advantage(3.5, 3, -0.5))  # nothing before it
    assert estimator([batch(1, 0, 0)])[0] == pytest.approx(advantage(3, -0.5, -0.5))  # 1/3 after 2/3
    assert estimator([batch(1, 0, 0)])[0] == pytest.approx(
        advantage(3.5, -0.5, -0.5)
    )  # as accurate as the one before
    assert estimator.metrics() == {"interleaved/credited": pytest.approx(2 / 3)}


def test_the_tolerance():
    """0.60 after 0.64 is within 0.05, 0.54 is not within 0.05 of 0.60."""
    of = {0.64: [1] * 16 + [0] * 9, 0.60: [1] * 15 + [0] * 10, 0.54: [1] * 27 + [0] * 23}
    estimator = made()
    gives = [estimator.progressing([batch(*of[rate])]) for rate in (0.64, 0.60, 0.54)]
    assert gives == [True, True, False]
    assert made(tolerance=0.0).progressing([batch(1, 0)])


def test_its_state_survives_a_restart():
    estimator, again = made(), made()
    estimator([batch(1, 1)])
    end_step(estimator, [])
    again.load_state_dict(json.loads(json.dumps(estimator.state_dict())))
    assert not again.progressing([batch(0, 0)])


def test_no_rollouts_and_wrong_settings():
    assert made()([]) == [] and not made().progressing([])
    for wrong in ({"slot": ""}, {"tolerance": -0.1}):
        with pytest.raises(ConfigError, match="slot"):
            InterleavedReasoning(**wrong)
