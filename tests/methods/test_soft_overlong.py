"""The penalty before the limit."""

import pytest
from make import group, run

from vlrl.methods.core.advantage import GRPO
from vlrl.methods.core.reward_shaping import SoftOverlong
from vlrl.plugins.registry import ConfigError


def test_by_hand():
    lengths = [6, 12, 14, 16, 20]
    assert SoftOverlong(limit=16, buffer=4)(group(*[1.0] * 5, lengths=lengths)) == [1.0, 1.0, 0.5, 0.0, 0.0]
    assert SoftOverlong(limit=16, buffer=4, factor=0.5)(group(0.0, lengths=[14])) == [-0.25]


def test_limit_comes_from_decoding():
    shape = SoftOverlong(buffer=8)
    shape.setup(run())
    assert shape(group(1.0, lengths=[12])) == [0.5]


def test_a_buffer_below_one_is_a_share_of_the_limit():
    assert SoftOverlong(limit=20, buffer=0.2)(group(*[1.0] * 3, lengths=[16, 18, 20])) == [1.0, 0.5, 0.0]


@pytest.mark.parametrize("buffer", [0, 17])
def test_a_buffer_outside_the_completion_is_refused(buffer):
    with pytest.raises(ConfigError, match="buffer"):
        SoftOverlong(buffer=buffer).check(run())


def test_half_the_factor_beside_1_and_0_is_the_factor_beside_1_and_minus_1():
    # 12 of 16 tokens are free: the penalties are 0, 0.5, 1 and 0; GRPO knows neither the scale nor the zero
    outcomes, lengths = (1, 1, 1, 0), [4, 14, 16, 9]
    released = [1.0, 0.5, 0.0, -1.0]
    ours = SoftOverlong(limit=16, buffer=4, factor=0.5)(group(*outcomes, lengths=lengths))
    assert ours == [1.0, 0.75, 0.5, 0.0] == [(reward + 1) / 2 for reward in released]
    assert GRPO(eps=0.0)([group(*ours)])[0] == pytest.approx(GRPO(eps=0.0)([group(*released)])[0])
