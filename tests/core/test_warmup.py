"""The warm-up of the learning rate, as a number of optimizer steps or as a share of them."""

import pytest

from vlrl.config.settings import Optimizer
from vlrl.trainer.step.optim import learning_rate_factor


def test_a_warmup_in_steps_and_as_a_share_by_hand():
    # 3 of 100 optimizer steps: 1/3, 2/3, 1, then the schedule
    steps, share = Optimizer(warmup=3), Optimizer(warmup=0.03)
    for settings in (steps, share):
        assert [learning_rate_factor(settings, step, 100) for step in range(5)] == pytest.approx(
            [1 / 3, 2 / 3, 1, 1, 1]
        )
    # the decay begins after the warm-up: at step 3 + 97 / 2 half of a linear decay is over
    linear = Optimizer(warmup=0.03, schedule="linear")
    assert learning_rate_factor(linear, 3, 100) == 1
    assert learning_rate_factor(linear, 52, 100) == pytest.approx(1 - 49 / 97)


def test_a_share_is_rounded_up():
    # OpenRLHF and transformers: ceil(0.03 * 50) = 2; no warm-up stays none
    assert Optimizer(warmup=0.03).warmup_steps(50) == 2
    assert Optimizer(warmup=0.001).warmup_steps(50) == 1
    assert Optimizer(warmup=0).warmup_steps(50) == 0
    assert Optimizer(warmup=1).warmup_steps(50) == 1


def test_a_fraction_of_steps_above_one_is_refused():
    with pytest.raises(ValueError, match="warmup is 2.5"):
        Optimizer(warmup=2.5)
