"""The rewards of compositions of skills: 1, 0 and -1 of the release, one higher."""

import pytest
from make import group

from vlrl.config import load
from vlrl.methods.core.advantage import GRPO
from vlrl.methods.papers.composeskills import ComposeskillsCut


def cut(*rewards, truncated):
    g = group(*rewards)
    for rollout, at_limit in zip(g, truncated, strict=True):
        rollout.finish = "length" if at_limit else "stop"
    return ComposeskillsCut()(g)


def test_a_cut_answer_has_the_lowest_total():
    assert cut(2.0, 2.0, 1.0, 0.0, truncated=[0, 1, 1, 0]) == [2.0, 0.0, 0.0, 0.0]


def test_the_totals_are_those_of_the_release_but_for_a_constant():
    # right, wrong in the form, nothing that can be read, right and cut
    released = [1.0, 0.0, -1.0, -1.0]
    rewards = load(["methods/composeskills"]).tree["rewards"]
    answer, form = [1, 0, 0, 1], [1, 1, 0, 1]
    totals = cut(*(a + rewards["format"]["weight"] * f for a, f in zip(answer, form)), truncated=[0, 0, 0, 1])
    assert totals == [reward + 1 for reward in released]
    assert GRPO(eps=0.0)([group(*totals)])[0] == pytest.approx(GRPO(eps=0.0)([group(*released)])[0])
