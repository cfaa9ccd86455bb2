"""Classic advantages: numbers by hand."""

from math import sqrt

import pytest
from make import group

from vlrl.methods.core.advantage import RLOO, Reinforce, ReinforcePP
from vlrl.methods.core.reward_shaping import TOKEN_REWARDS
from vlrl.methods.papers.gdpo import GDPO
from vlrl.methods.papers.gpg import GPG
from vlrl.methods.papers.maxrl import MaxRL
from vlrl.methods.papers.opo import OPO
from vlrl.methods.papers.pass_k_training import PassKTraining
from vlrl.methods.papers.remax import GREEDY_BASELINE, ReMax
from vlrl.plugins.stages import TOKEN_ADVANTAGES


def test_rloo():
    a, b = RLOO()([group(1, 0, 0, 2), group(5)])
    assert a == pytest.approx([1 - 2 / 3, -1, -1, 2 - 1 / 3]) and b == [0.0]


def test_reinforce_subtracts_the_mean_of_the_steps_before():
    advantage = Reinforce(decay=0.5)
    assert advantage([group(1, 0)]) == [[0.5, -0.5]]
    assert advantage([group(1, 1)]) == [[0.5, 0.5]]  # b was 0.5
    assert advantage([group(0)]) == [[-0.75]]  # b is now (0.5 + 1) / 2
    again = Reinforce(decay=0.5)
    again.load_state_dict(advantage.state_dict())
    assert again.state_dict() == {"baseline": 0.375} == advantage.state_dict()


def test_reinforce_without_baseline():
    assert Reinforce(decay=0.0)([group(1, 0)]) == [[1.0, 0.0]]
    with pytest.raises(ValueError, match="decay"):
        Reinforce(decay=1.0)


def test_reinforce_pp_counts_tokens():
    # values 1 (one token) and 0 (three tokens): mean 1/4, unbiased variance (9/16 + 3/16) / 3 = 1/4
    (a,) = ReinforcePP(eps=0.0)([group(1, 0, lengths=[1, 3])])
    assert a == pytest.approx([1.5, -0.5])


def test_reinforce_pp_baseline_centres_each_group():
    a, b = ReinforcePP(baseline=True, eps=0.0)([group(3, 1, lengths=[1, 1]), group(7, 7, lengths=[1, 1])])
    assert a == pytest.approx([1 / sqrt(2 / 3), -1 / sqrt(2 / 3)]) and b == [0.0, 0.0]
    assert ReinforcePP()([group(0.1, 0.1), group(0.1)]) == [[0.0, 0.0], [0.0]]


@pytest.mark.parametrize(("one_out", "score"), [(False, 0.5), (True, 1.0)])
def test_reinforce_pp_baseline_is_that_of_the_outcome_without_token_rewards(one_out, score):
    # OpenRLHF c05a994d: rewards less their baseline, then the KL on every token, returns, normalisation
    a, b = group(1, 0, lengths=[2, 1]), group(1, 0, lengths=[1, 1])
    for rollout, row in zip([*a, *b], ([-0.1, -0.3], [-0.2], [0.0], [0.0]), strict=True):
        TOKEN_REWARDS.set(rollout, row)
    ReinforcePP(baseline=True, leave_one_out=one_out, token_rewards=True, eps=0.0)([a, b])
    returns = [score - 0.4, score - 0.3, -score - 0.2, score, -score]
    centre = sum(returns) / 5
    std = sqrt(sum((value - centre) ** 2 for value in returns) / 4)
    own = [value for rollout in (*a, *b) for value in TOKEN_ADVANTAGES[rollout]]
    assert own == pytest.approx([(value - centre) / std for value in returns])


def test_reinforce_pp_leave_one_out():
    a, b = ReinforcePP(baseline=True, leave_one_out=True, eps=0.0)(
        [group(3, 1, 2, lengths=[1, 1, 1]), group(5, lengths=[1])]
    )
    scores = [1.5, -1.5, 0.0]  # 3 - (1 + 2) / 2, 1 - (3 + 2) / 2, 2 - (3 + 1) / 2; a group of one: 0
    assert a == pytest.approx([score / sqrt(1.5) for score in scores]) and b == [0.0]
    with pytest.raises(ValueError, match="set baseline: true"):
        ReinforcePP(leave_one_out=True)


def test_remax():
    with_greedy = group(1, 0, 0.5, source=["policy", "policy", "greedy"], trained=[True, True, False])
    with_greedy.set_untrained_aside()
    assert ReMax()([with_greedy]) == [[0.5, -0.5]]
    with pytest.raises(ValueError, match="no greedy rollout"):
        ReMax()([group(1, 0)])


def test_remax_needs_its_rollout_strategy():
    assert ReMax().requires == (GREEDY_BASELINE,)


def test_opo_weighs_by_length():
    (a,) = OPO()([group(1, 0, lengths=[1, 3])])
    assert a == [0.75, -0.25]


def test_gpg_makes_up_for_groups_without_gradient():
    a, b = GPG()([group(1, 0), group(1, 1)])
    assert a == [1.0, -1.0] and b == [0.0, 0.0]  # alpha = 2 / 1
    assert GPG()([group(1, 1)]) == [[0.0, 0.0]]
    (c,) = GPG(divisor="std", eps=0.0)([group(1, 0)])
    assert c == pytest.approx([sqrt(0.5), -sqrt(0.5)])


def test_gdpo_keeps_rewards_apart():
    # two slots with different scales; each is +-sqrt(1/2) after its own unbiased z-score
    one = group(0, 0, raw={"accuracy": [1, 0], "format": [0, 10]})
    (a,) = GDPO(eps=0.0, whiten=False, weights={"format": 2.0})([one])
    assert a == pytest.approx([-sqrt(0.5), sqrt(0.5)])
    a, b = GDPO(eps=0.0, weights={"format": 2.0})(
        [one, group(0, 0, raw={"accuracy": [1, 1], "format": [0, 0]})]
    )
    assert a == pytest.approx([-sqrt(1.5), sqrt(1.5)]) and b == [
        0.0,
        0.0,
    ]  # std of (-.71, .71, 0, 0) is sqrt(1/3)


def test_gdpo_takes_the_rewards_own_weights():
    from types import SimpleNamespace

    advantage = GDPO(eps=0.0, whiten=False)
    advantage.setup(
        SimpleNamespace(rewards={"a": SimpleNamespace(weight=1.0), "b": SimpleNamespace(weight=0.0)})
    )
    assert advantage([group(0, 0, raw={"a": [1, 0], "b": [0, 1]})])[0] == pytest.approx(
        [sqrt(0.5), -sqrt(0.5)]
    )


def test_maxrl_divides_by_the_success_rate():
    a, b = MaxRL()([group(1, 0, 0, 0), group(0, 0)])
    assert a == [3.0, -1.0, -1.0, -1.0] and b == [0.0, 0.0]
    with pytest.raises(ValueError, match="negative"):
        MaxRL()([group(-1, 1)])


def test_pass_at_k_by_hand():
    # n = 4, two wrong, k = 2: P(all wrong) = 1 / 6; s = sqrt(5) / 6; C(1, 1) / C(3, 1) = 1 / 3
    (a,) = PassKTraining(k=2)([group(1, 1, 0, 0)])
    low = (1 / 6 - 1 / 3) / (sqrt(5) / 6)
    assert a == pytest.approx([1 / sqrt(5), 1 / sqrt(5), low, low])


@pytest.mark.parametrize("rewards", [(0, 0, 0), (1, 1, 1), (1, 1, 0)])
def test_pass_at_k_without_signal(rewards):
    assert PassKTraining(k=2)([group(*rewards)]) == [
        [0.0] * 3
    ]  # one wrong among three: any two hold a right one


def test_pass_at_1_is_grpo():
    (a,) = PassKTraining(k=1)([group(1, 0, 0, 0)])
    assert a == pytest.approx([0.75 / sqrt(0.1875), *[-0.25 / sqrt(0.1875)] * 3])
