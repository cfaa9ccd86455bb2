"""GRPO-N by hand."""

import math

import pytest
from make import group

from vlrl.plugins.registry import build
from vlrl.plugins.stages import AdvantageEstimator


def test_positive_advantages_become_zero_and_the_rest_stays():
    (found,) = build(AdvantageEstimator, {"name": "twostage", "eps": 0.0})([group(1.0, 0.0, 0.0, 0.0)])
    assert found == pytest.approx([0.0, -0.5, -0.5, -0.5])  # mean 1/4, unbiased std 1/2


def test_negative_is_relative_to_the_group():
    (found,) = build(AdvantageEstimator, {"name": "twostage", "scale": "none"})([group(0.9, 0.5, 1.0)])
    assert found == pytest.approx([0.0, -0.3, 0.0])


@pytest.mark.parametrize("rewards", [(1.0, 1.0), (0.0, 0.0, 0.0)])
def test_equal_rewards_have_no_signal(rewards):
    (found,) = build(AdvantageEstimator, {"name": "twostage"})([group(*rewards)])
    assert found == [0.0] * len(rewards) and all(math.copysign(1, value) == 1 for value in found)
