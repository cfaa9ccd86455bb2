"""Every short text over the characters of a jigsaw answer is read or refused, never an error."""

from itertools import product

import pytest
from vlrl_rewards.puzzles.jigsaw import read_order


@pytest.mark.parametrize("count", [2, 4])
def test_short_texts_never_raise(count):
    read = 0
    for length in range(6):
        for chars in product("12[\"'` ,", repeat=length):
            order = read_order("".join(chars), count)
            assert order is None or sorted(order) == list(range(1, count + 1))
            read += order is not None
    assert (read > 100) == (count == 2)


def test_quoted_halves():
    assert read_order('"2', 2) is None and read_order('"2 1', 2) == [2, 1] and read_order("[21]", 2) == [2, 1]
