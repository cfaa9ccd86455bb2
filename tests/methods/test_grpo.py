"""Group-relative advantages: numbers by hand."""

import pytest
from make import group

from vlrl.functional.exact import mean, std
from vlrl.methods.core.advantage import GRPO


def test_by_hand():
    # mean 0.5; deviations +-0.5; unbiased std = sqrt(4 * 0.25 / 3) = 0.57735
    (a,) = GRPO(eps=0.0)([group(1, 0, 1, 0)])
    assert a == pytest.approx([0.8660254, -0.8660254, 0.8660254, -0.8660254])


def test_population_std():
    (a,) = GRPO(eps=0.0, unbiased=False)([group(1, 0, 0, 0)])  # std = sqrt(0.1875)
    assert a == pytest.approx([0.75 / 0.4330127, *[-0.25 / 0.4330127] * 3])


def test_eps_is_added_to_the_std():
    (a,) = GRPO(eps=0.5, unbiased=False)([group(1, 0)])
    assert a == pytest.approx([0.5, -0.5])


def test_batch_scale_uses_all_rewards():
    a, b = GRPO(scale="batch", eps=0.0, unbiased=False)(
        [group(1, 0), group(4, 3)]
    )  # rewards 1 0 4 3: mean 2, variance 2.5
    assert a == pytest.approx([0.5 / 2.5**0.5, -0.5 / 2.5**0.5]) and b == pytest.approx(a)


def test_no_scale_is_dr_grpo():
    a, b = GRPO(scale="none")([group(3, 0, 0), group(5)])
    assert a == [2.0, -1.0, -1.0] and b == [0.0]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_give_exact_zeros(scale):
    groups = [group(0.1, 0.1, 0.1), group(0.7), group(1, 0)]
    a, b, _ = GRPO(scale=scale)(groups)
    assert a == [0.0, 0.0, 0.0] and b == [0.0]


def test_statistics_of_little():
    assert mean([]) == 0.0 and std([]) == std([4.0]) == 0.0
