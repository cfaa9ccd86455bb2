"""Bounds of the total reward."""

import pytest
from make import group

from vlrl.methods.core.reward_shaping import RewardClip
from vlrl.plugins.registry import ConfigError


def test_rewards_within_the_bounds_stay_and_others_become_the_bound():
    assert RewardClip()(group(-25.0, -10.0, 0.5, 10.0, 11.0)) == [-10.0, -10.0, 0.5, 10.0, 10.0]
    assert RewardClip(low=0.0, high=1.0)(group(-0.5, 0.25, 2.0)) == [0.0, 0.25, 1.0]


def test_bounds_the_wrong_way_round_are_refused():
    with pytest.raises(ConfigError, match="low=1.0 must be below high=0.0"):
        RewardClip(low=1.0, high=0.0).check(None)
