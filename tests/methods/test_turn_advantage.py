"""Credit per turn: values by hand, limit cases, episodes of several rollouts."""

import pytest

from vlrl.methods.core.advantage import GRPO
from vlrl.methods.core.turn_advantage import GiGPO, TurnReturn, returns_to_go, turn_rewards
from vlrl.plugins.episodes import CONVERSATION, SEGMENT, TURN_REWARDS, TURN_SPANS, TURN_STATES
from vlrl.plugins.stages import TOKEN_ADVANTAGES
from vlrl.trainer.step.loop import advantages_of
from vlrl.types import Group, Prompt, Rollout, Row

PROMPT = Prompt(Row("r", "q"), ())


def episode(number, paid, reward=None, states=None, observation=1):
    """An episode in one rollout: every turn has two tokens, and `observation` tokens of the environment stand
    between turns."""
    spans, mask = [], []
    for turn in range(len(paid)):
        mask += [False] * (observation if turn else 0)
        spans.append([turn, len(mask), len(mask) + 2])
        mask += [True, True]
    rollout = Rollout(
        PROMPT, list(range(len(mask))), loss_mask=mask, reward=sum(paid) if reward is None else reward
    )
    CONVERSATION.set(rollout, number)
    SEGMENT.set(rollout, 0)
    TURN_REWARDS.set(rollout, list(paid))
    TURN_SPANS.set(rollout, spans)
    TURN_STATES.set(rollout, list(states or [f"{number}/{turn}" for turn in range(len(paid))]))
    return rollout


def test_returns_to_go():
    assert returns_to_go([1.0, 2.0, 3.0], 1.0) == [6.0, 5.0, 3.0] and returns_to_go([], 0.5) == []
    assert turn_rewards([episode(0, [0.1, 0.2], reward=1.0)]) == pytest.approx([0.1, 0.9]), (
        "what is left of the reward is paid at the end"
    )


def test_turn_return_by_hand():
    """Returns to go: a (3, 2), b (1), c (0, 0). Means: 4/3 and (2 + 0 + 0) / 3. Std of (3, 1, 0):
    sqrt(7/3)."""
    a, b, c = episode(0, [1.0, 2.0]), episode(1, [1.0]), episode(2, [0.0, 0.0])
    (means,) = TurnReturn(eps=0.0)([Group(PROMPT, [a, b, c])])
    std = (7 / 3) ** 0.5
    first, second = (3 - 4 / 3) / std, (2 - 2 / 3) / std
    assert TOKEN_ADVANTAGES[a] == pytest.approx([first, first, 0.0, second, second])
    assert TOKEN_ADVANTAGES[b] == pytest.approx([(1 - 4 / 3) / std] * 2)
    assert TOKEN_ADVANTAGES[c] == pytest.approx([-4 / 3 / std, -4 / 3 / std, 0.0, -2 / 3 / std, -2 / 3 / std])
    assert means[0] == pytest.approx((first + second) / 2), "the mean over trained tokens"


def test_turn_return_of_one_turn_is_grpo():
    group = Group(PROMPT, [episode(i, [r]) for i, r in enumerate((1.0, 0.0, 0.5))])
    assert TurnReturn()([group]) == [pytest.approx(GRPO()([group])[0])]
    plain = Group(PROMPT, [Rollout(PROMPT, [1, 2], reward=r) for r in (1.0, 0.0, 0.5)])
    assert TurnReturn()([plain]) == [pytest.approx(GRPO()([plain])[0])], "rollouts of no episode"
    assert TurnReturn()([Group(PROMPT, [episode(0, [1.0, 2.0])])]) == [[0.0]]


def test_stopping_early_earns_no_bonus():
    """With zeros for stopped episodes the baseline of a later turn does not depend on who went on: its sum
    over episodes of G - mean is G's own."""
    going, stopped = episode(0, [0.0, 1.0]), episode(1, [0.0])
    TurnReturn(scale="none")([Group(PROMPT, [going, stopped])])
    assert TOKEN_ADVANTAGES[going] == pytest.approx([0.5, 0.5, 0.0, 0.5, 0.5]) and TOKEN_ADVANTAGES[
        stopped
    ] == pytest.approx([-0.5, -0.5])


def test_gigpo_by_hand():
    """Two episodes share the state "s" at their first turns, and a lone state each afterwards. gamma 0.5: G =
    (0.5, 1) and (0, 0)."""
    a, b = episode(0, [0.0, 1.0], states=["s", "x"]), episode(1, [0.0, 0.0], states=["s", "y"])
    plugin = GiGPO(gamma=0.5)
    plugin([Group(PROMPT, [a, b])])
    assert TOKEN_ADVANTAGES[a] == pytest.approx([0.5 + 0.25, 0.75, 0.0, 0.5, 0.5]) and TOKEN_ADVANTAGES[
        b
    ] == pytest.approx([-0.75, -0.75, 0, -0.5, -0.5])
    assert plugin.metrics() == {"gigpo/state_group_size": (4.0, 3.0)}
    GiGPO(gamma=0.5, weight=0.0)([Group(PROMPT, [a, b])])
    assert TOKEN_ADVANTAGES[a] == pytest.approx([0.5, 0.5, 0.0, 0.5, 0.5])
    assert GiGPO()([Group(PROMPT, [episode(0, [0.25])])]) == [[0.25]], (
        "an episode alone in its group keeps its reward, as released"
    )


def test_gigpo_compares_states_of_one_prompt_only_and_divides_by_std():
    one, two = (
        Group(PROMPT, [episode(0, [r], states=["s"]), episode(1, [0.0], states=["s"])]) for r in (1.0, 3.0)
    )
    GiGPO(gamma=1.0)([one, two])
    assert TOKEN_ADVANTAGES[one.rollouts[0]] == [1.0, 1.0] and TOKEN_ADVANTAGES[two.rollouts[0]] == [3.0, 3.0]
    GiGPO(gamma=1.0, scale="group", eps=0.0)([one])
    assert TOKEN_ADVANTAGES[one.rollouts[0]] == pytest.approx([2 / 2**0.5] * 2)


def parts(number, reward, count):
    """An episode in several rollouts: a picture was shown after every turn."""
    made = []
    for place in range(count):
        rollout = Rollout(PROMPT, [1, 2], reward=reward)
        CONVERSATION.set(rollout, number)
        SEGMENT.set(rollout, place)
        TURN_REWARDS.set(rollout, [0.0] * (count - 1) + [reward])
        TURN_SPANS.set(rollout, [[place, 0, 2]])
        TURN_STATES.set(rollout, [f"{number}/{turn}" for turn in range(count)])
        made.append(rollout)
    return made


def test_an_episode_of_several_rollouts_counts_once_in_the_baseline():
    """Rewards 0 (in four rollouts), 1 and 1: the mean is 2/3, not 1/3."""
    group = Group(PROMPT, [*parts(0, 0.0, 4), *parts(1, 1.0, 1), *parts(2, 1.0, 1)])
    (values,) = advantages_of([group], GRPO(scale="none"))
    assert values == pytest.approx([-2 / 3] * 4 + [1 / 3] * 2)
    (whole,) = advantages_of([Group(PROMPT, [episode(0, [0.0]), episode(1, [1.0])])], GRPO(scale="none"))
    assert whole == [-0.5, 0.5]


def test_credit_per_turn_reaches_the_rollouts_of_an_episode():
    group = Group(PROMPT, [*parts(0, 1.0, 2), *parts(1, 0.0, 1)])
    advantages_of([group], TurnReturn(scale="none", gamma=0.5))
    assert [TOKEN_ADVANTAGES[rollout] for rollout in group] == [[0.25, 0.25], [0.5, 0.5], [-0.25, -0.25]]
