"""One advantage for all tokens."""

import pytest
from make import group

from vlrl.methods.core.token_credit import Uniform


def test_repeats_over_each_rollouts_own_length():
    assert Uniform()(group(1, 0, lengths=[3, 1]), [0.5, -2.0]) == [[0.5, 0.5, 0.5], [-2.0]]


def test_a_rollout_without_advantage_is_an_error():
    with pytest.raises(ValueError, match="zip"):
        Uniform()(group(1, 0), [0.5])
