"""Credit per token: numbers by hand."""

from math import asin, exp, sqrt, tanh
from types import SimpleNamespace

import pytest
import torch
from make import group, run

from vlrl.methods.core.reward_shaping import KLInReward
from vlrl.methods.core.token_credit import KLReturn, PerToken
from vlrl.methods.papers.ktae import KTAE, fisher, information_gain
from vlrl.methods.papers.lare import LaRe
from vlrl.methods.papers.less import LESS
from vlrl.methods.papers.ppl import PplLateBonus
from vlrl.methods.papers.rl_zvp import RlZvp


def with_signals(g, **signals):
    for name, rows in signals.items():
        for rollout, row in zip(g, rows):
            rollout.signals[name] = row
    return g


def test_zero_variance_groups_learn_from_entropy():
    entropy = [[0.5, 1.0], [0.2, 0.2]]
    right = with_signals(group(1, 1, lengths=[2, 2]), entropy=entropy)
    assert RlZvp(alpha=0.1)(right, [0, 0]) == [[0.05, 0.1], pytest.approx([0.02, 0.02])]
    wrong = with_signals(group(0, 0, lengths=[2, 2]), entropy=entropy)
    assert RlZvp(alpha=0.1)(wrong, [0, 0]) == [[-0.05, 0.0], [0.0, 0.0]]
    mixed = with_signals(group(1, 0, lengths=[2, 2]), entropy=entropy)
    assert RlZvp()(mixed, [1.0, -1.0]) == [[1.0, 1.0], [-1.0, -1.0]]


def test_fisher_agrees_with_scipy():
    from scipy.stats import fisher_exact

    for table in ((3, 0, 0, 3), (2, 1, 1, 2), (4, 1, 0, 3), (0, 2, 5, 1), (3, 3, 0, 0)):
        a, b, c, d = table
        assert fisher(*table) == pytest.approx(fisher_exact([[a, b], [c, d]])[1])


def test_information_gain():
    assert information_gain(2, 0, 0, 2) == pytest.approx(1.0) and information_gain(
        1, 1, 1, 1
    ) == pytest.approx(0.0)


def test_ktae_by_hand():
    # token 7 in both right rollouts only, token 5 everywhere; eight tokens, four a side
    g = group(1, 1, 0, 0, lengths=[2] * 4, ids=[[7, 5], [7, 5], [6, 5], [6, 5]])
    values = KTAE()(g, [0.5, 0.5, -0.5, -0.5])
    p = 1 / 3  # Fisher of [[2, 0], [0, 2]]: two extreme tables of six
    tf = 3 * 0.5 / (0.5 + 2.0)
    key = tanh((exp(-2 * p) + 1.0) * (asin(1.0) + tf / 1e-5) / 4)
    assert values[0] == pytest.approx([0.5 + key, 0.5]) and values[2] == pytest.approx([-0.5 - key, -0.5])
    assert KTAE().keys([[7, 5], [7, 5]], [[6, 5], [6, 5]])[5] == pytest.approx(0.0)


def test_ktae_partial_overlap():
    keys = KTAE().keys([[7, 8], [7, 9]], [[7, 9], [8, 9]])
    a = tanh((exp(-2) + information_gain(2, 1, 0, 1)) * (asin(1) - asin(sqrt(0.5)) + tf_gap(2, 1)) / 4)
    assert fisher(2, 1, 0, 1) == pytest.approx(1.0) and keys[7] == pytest.approx(a)
    everywhere = KTAE().keys([[7, 7]], [[7, 8]])[
        7
    ]  # no rollout lacks it: only then is p exactly 1 in float32
    tf = [3.0 * n / (n + k) for n, k in ((1.0, 2.0), (0.5, 2.0))]
    assert everywhere == pytest.approx(0.0) and tf[0] > tf[1]


def tf_gap(right, wrong):
    r, w = (3 * (n / 4) / (n / 4 + 2) for n in (right, wrong))
    return r / (w + 1e-5) - w / (r + 1e-5)


def test_ktae_leaves_groups_without_contrast_and_special_tokens():
    assert KTAE()(group(1, 1), [0.2, 0.2]) == [[0.2] * 3] * 2
    credit = KTAE()
    credit.setup(run(policy=SimpleNamespace(tokenizer=SimpleNamespace(eos_token_id=7, pad_token_id=None))))
    g = group(1, 0, lengths=[1, 1], ids=[[7], [6]])
    assert credit(g, [0.0, 0.0])[0] == [0.0] and credit(g, [0.0, 0.0])[1][0] < -0.5


def test_less_weighs_segments_by_who_holds_them():
    # the threshold is the fourth of five entropies: below it a segment, at it 1 / N, above it 1
    ids = [[1, 2, 3, 9, 9], [1, 2, 3, 8, 8], [2, 3, 7, 6, 6]]
    g = group(1, 1, 0, lengths=[5] * 3, ids=ids)
    with_signals(g, entropy=[[0, 0.1, 0.2, 1, 2], [0, 0.1, 0.2, 1, 2], [0, 0.1, 2, 0.2, 1]])
    a, b, c = LESS(share=0.6, min_length=2)(g, [1.0, 4.0, -2.0])
    assert (
        a == [1.0, 0.0, 0.0, 0.5, 1.0]
        and b == [4.0, 0.0, 0.0, 2.0, 4.0]
        and c == [0.0, 0.0, -2.0, -2.0, -2.0]
    )
    a, b, c = LESS(share=0.6, min_length=3)(
        g, [1.0, 4.0, -2.0]
    )  # then 2 3 is no segment: 1 2 3 is held by both right ones
    assert a == [1.0, 1.0, 1.0, 0.5, 1.0] and b == [4.0, 4.0, 4.0, 2.0, 4.0] and c == [-2.0] * 5


def test_less_alone_on_its_side_is_uniform():
    g = with_signals(group(1, 0, ids=[[1, 2, 3], [4, 5, 6]]), entropy=[[0.0] * 3] * 2)
    assert LESS(min_length=1)(g, [1.0, -1.0]) == [[1.0] * 3, [-1.0] * 3]


def test_late_bonus():
    early, half = 0.1 / (1 + exp(7.5)), 0.05
    row, zero, small = PplLateBonus()(group(0, 0, 0, lengths=[2, 2, 2]), [-1.0, 0.0, 0.02])
    assert row == pytest.approx([-1 - early, -1 - half]) and zero == [0.0, 0.0]
    assert small == pytest.approx([0.02 + early, 0.02 + 0.01])  # at most half of the advantage


def test_kl_in_reward_and_return():
    g = with_signals(group(1.0, lengths=[3]), ref_logp=[[-1.0, -2.0, -3.0]], old_logp=[[-0.5, -2.0, -2.0]])
    assert KLInReward(beta=0.1)(g) == pytest.approx([1 - 0.1 * 1.5])
    assert KLReturn(beta=0.1)(g, [2.0])[0] == pytest.approx([1.85, 1.9, 1.9])
    g.rollouts[0].loss_mask = [True, True, False]
    assert KLInReward(beta=0.1)(g) == pytest.approx([0.95])
    k3 = exp(-0.5) - 1 + 0.5
    assert KLInReward(beta=1.0, estimator="k3")(g) == pytest.approx([1 - k3])
    assert KLInReward(beta=1.0, estimator="k2")(g) == pytest.approx([1 - 0.125])


def test_per_token_credit_hands_out_what_was_left():
    g = group(1, 0, lengths=[2, 2])
    g.rollouts[0].info["token_advantages"] = [0.1, 0.2]
    assert PerToken()(g, [5.0, 6.0]) == [[0.1, 0.2], [6.0, 6.0]]


def test_lare_moves_credit_to_the_segment_that_explains_the_reward():
    credit = LaRe(factors=("one", "digits"), segment=1, weight=1.0, ridge=1e-3, decay=1.0)
    credit.setup(run(policy=SimpleNamespace(decode=lambda ids: "".join(map(chr, ids)))))
    g = group(1, 0, lengths=[3, 3], ids=[[97, 55, 97], [97, 97, 97]])
    assert credit(g, [0.5, -0.5]) == [[0.5] * 3, [-0.5] * 3]  # nothing was learned before
    first, second = credit(g, [0.5, -0.5])
    assert (
        first[1] > first[0] == first[2]
        and sum(first) == pytest.approx(1.5)
        and second == pytest.approx([-0.5] * 3)
    )
    again = LaRe(factors=("one", "digits"), segment=1)
    again.load_state_dict(credit.state_dict())
    assert torch.equal(again.state.xx, credit.state.xx) and torch.equal(again.state.xy, credit.state.xy)
    with pytest.raises(ValueError, match="colour"):
        LaRe(factors=("colour",))
