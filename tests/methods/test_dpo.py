"""Direct preference optimisation: the loss by hand, its gradient, pairs, episodes of several rollouts, groups
without a pair."""

import math

import pytest
import torch
from make import group, inputs

from vlrl.methods.core.loss_term import DPO
from vlrl.plugins.episodes import CONVERSATION


def softplus(value):
    return math.log1p(math.exp(value))


def two(correct, rewards=None, reference=(-1.0, -2.0), **fields):
    """Two rollouts of two tokens; log-probs -1, -1 and -2, -1; the reference has a constant for each."""
    made = group(*(rewards or [float(c) for c in correct]), lengths=[2] * len(correct))
    for rollout, right in zip(made, correct, strict=True):
        rollout.correct = right
    logp = [[-1.0, -1.0], [-2.0, -1.0], [-0.5, -0.5]][: len(correct)]
    ref = [[value, value] for value in (*reference, -1.0)][: len(correct)]
    return inputs(logp, groups=[made], lengths=[2] * len(correct), ref_logp=ref, **fields)


def test_by_hand():
    """Log-ratios: -2 + 2 = 0 and -3 + 4 = 1. The first is right: margin 0.5 (0 - 1), loss log(1 + e^0.5), on
    every rollout of the group."""
    out = DPO(beta=0.5)(two([True, False]))
    assert out.loss.tolist() == pytest.approx([softplus(0.5)] * 2)
    assert out.metrics["dpo/margin"].tolist() == pytest.approx([-0.5]) and out.metrics[
        "dpo/ranked_right"
    ].tolist() == [0.0]


def test_the_gradient_raises_the_better_and_lowers_the_worse():
    x = two([True, False])
    DPO(beta=0.5)(x).loss.mean().backward()
    weight = 0.5 / (1 + math.exp(-0.5))
    assert x.logp_BT.grad[0].tolist() == pytest.approx([-weight] * 2) and x.logp_BT.grad[
        1
    ].tolist() == pytest.approx([weight] * 2)


def test_pairs():
    term = DPO()
    told = [(True, 1.0), (False, 0.5), (True, 0.9), (False, -1.0)]
    assert term.chosen(told) == [(0, 1), (0, 3), (2, 1), (2, 3)] and DPO(pairs="best").chosen(told) == [
        (0, 3)
    ]
    assert (
        term.chosen([(True, 1.0), (True, 0.0)]) == []
        and DPO(pairs="best").chosen([(False, 0.3), (True, 0.3)]) == []
    )


def test_several_pairs_are_averaged():
    """Right 0 and 2, wrong 1; log-ratios 0, 1 and -1 + 2 = 1."""
    out = DPO(beta=1.0)(two([True, False, True]))
    assert out.loss.tolist() == pytest.approx([(softplus(1.0) + softplus(0.0)) / 2] * 3)


def test_a_group_without_a_pair_adds_nothing():
    x = two([False, False])
    out = DPO()(x)
    assert out.loss.tolist() == [0.0, 0.0] and not len(out.metrics["dpo/margin"])
    out.loss.sum().backward()
    assert x.logp_BT.grad.abs().sum() == 0
    assert DPO(pairs="best")(two([False, False], rewards=[0.2, 0.1])).loss[0] > 0, "ranked by reward"


def test_rollouts_of_an_episode_count_together():
    x = two([False, False, True])
    first, second, other = x.batch.rollouts
    CONVERSATION.set(first, 0), CONVERSATION.set(second, 0), CONVERSATION.set(other, 1)
    assert DPO(beta=1.0)(x).loss.tolist() == pytest.approx([softplus(0.0)] * 3), "wrong: 0 + 1; right: 1"


def test_masked_tokens_do_not_count():
    x = two([True, False])
    masked = inputs(
        [[-1.0, -9.0], [-2.0, -1.0]],
        groups=x.batch.groups,
        lengths=[1, 2],
        ref_logp=[[-1.0, 0.0], [-2.0, -2.0]],
    )
    assert DPO(beta=1.0)(masked).loss[0].item() == pytest.approx(softplus(1.0))
    assert torch.isfinite(DPO()(masked).loss).all()
    with pytest.raises(ValueError, match="beta"):
        DPO(beta=0.0)
