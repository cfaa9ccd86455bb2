"""The clipped ratio: values and gradients by hand."""

from math import log

import pytest
import torch
from make import gradient, inputs

from vlrl.methods.core.policy_loss import PPOClip, ZeroLoss


def ratio_inputs(*ratios, advantage):
    return inputs([[log(r) - 1 for r in ratios]], old=[[-1.0] * len(ratios)], advantage=advantage)


@pytest.mark.parametrize(
    ("advantage", "loss", "grad"),
    [
        (2.0, [-1.0, -2.0, -2.4, -2.4], [-1.0, -2.0, 0.0, 0.0]),  # clipped only above 1.2; gradient -r A
        (-2.0, [1.6, 2.0, 2.6, 6.0], [0.0, 2.0, 2.6, 6.0]),  # clipped only below 0.8
    ],
)
def test_by_hand(advantage, loss, grad):
    x = ratio_inputs(0.5, 1.0, 1.3, 3.0, advantage=advantage)
    out = PPOClip()(x)
    assert out.loss[0].tolist() == pytest.approx(loss)
    assert gradient(out.loss, x)[0].tolist() == pytest.approx(grad)


def test_clip_higher():
    out = PPOClip(high=0.28)(ratio_inputs(1.25, 1.3, advantage=1.0))
    assert out.loss[0].tolist() == pytest.approx([-1.25, -1.28])


def test_dual_clip_bounds_only_negative_advantages():
    negative = ratio_inputs(2.0, 5.0, advantage=-1.0)
    out = PPOClip(dual_clip=3.0)(negative)
    assert out.loss[0].tolist() == pytest.approx([2.0, 3.0])
    assert gradient(out.loss, negative)[0].tolist() == pytest.approx([2.0, 0.0])
    assert PPOClip(dual_clip=3.0)(ratio_inputs(5.0, advantage=1.0)).loss.item() == pytest.approx(-1.2)


def test_metrics_count_what_was_clipped():
    metrics = PPOClip()(ratio_inputs(0.5, 1.0, 1.3, advantage=1.0)).metrics
    assert metrics["clip_fraction"][0].tolist() == [0.0, 0.0, 1.0] and metrics["clip_low"].sum() == 0
    assert metrics["ratio"][0].tolist() == pytest.approx([0.5, 1.0, 1.3])
    assert PPOClip()(ratio_inputs(0.5, 1.3, advantage=-1.0)).metrics["clip_fraction"][0].tolist() == [
        1.0,
        0.0,
    ]


def test_on_policy_gradient_is_reinforce():
    x = inputs([[-1.0, -2.0], [-0.5, -9.0]], advantage=[1.5, -0.5], lengths=[2, 1])
    assert torch.equal(gradient(PPOClip()(x).loss, x), torch.tensor([[-1.5, -1.5], [0.5, 0.0]]))


@pytest.mark.parametrize("bad", [{"low": 1.5}, {"high": -0.1}, {"dual_clip": 0.9}])
def test_senseless_bounds_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        PPOClip(**bad)


def test_none_has_zero_loss_and_zero_gradient():
    x = inputs([[-1.0, -2.0]], advantage=3.0)
    loss = ZeroLoss()(x).loss
    assert loss.tolist() == [[0.0, 0.0]] and gradient(loss, x).abs().sum() == 0
