"""GTR's advantage: PPO's over the agent's own rollouts, whatever corrected thoughts stand beside them."""

import pytest
from make import group

from vlrl.methods.core.advantage import GAE
from vlrl.methods.core.critic import RETURNS
from vlrl.methods.papers.gtr import CORRECTED, GtrAdvantage
from vlrl.plugins.stages import TOKEN_ADVANTAGES
from vlrl.types import Group


def valued(*rewards, source="policy"):
    made = group(*rewards, lengths=[2] * len(rewards), source=[source] * len(rewards))
    for rollout in made:
        rollout.signals["value"] = [0.25, 0.5]
    return made


def test_by_hand():
    """V = 0.25, 0.5; reward 1 at the end, gamma = lambda = 1: A = 0.75 and 0.5."""
    agent, thought = valued(1.0), valued(7.0, source=CORRECTED)
    assert GtrAdvantage(lam=1.0, whiten=False)([agent, thought]) == [[pytest.approx(0.625)], [0.0]]
    assert TOKEN_ADVANTAGES[agent.rollouts[0]] == pytest.approx([0.75, 0.5]) and TOKEN_ADVANTAGES[
        thought.rollouts[0]
    ] == [0.0, 0.0]
    assert RETURNS[agent.rollouts[0]] == pytest.approx([1.0, 1.0])


def test_corrected_thoughts_take_no_part_in_the_whitening():
    alone, beside, thought = valued(1.0, 0.0), valued(1.0, 0.0), valued(5.0, source=CORRECTED)
    mixed = Group(beside.prompt, [beside.rollouts[0], thought.rollouts[0], beside.rollouts[1]])
    ((first, second),) = GAE()([alone])
    assert GtrAdvantage()([mixed]) == [[pytest.approx(first), 0.0, pytest.approx(second)]]
    assert GtrAdvantage()([thought]) == [[0.0]]
