"""Classic surrogates: values and gradients by hand, and their limit cases."""

from math import exp, log

import pytest
import torch
from make import gradient, inputs

from vlrl.methods.core.policy_loss import PolicyGradient, PPOClip
from vlrl.methods.papers.cispo import CISPO
from vlrl.methods.papers.gmpo import GMPO
from vlrl.methods.papers.gspo import GSPO
from vlrl.methods.papers.sapo import SAPO
from vlrl.methods.papers.vespo import VESPO

OLD = [[-1.0, -1.0]]


def moved(*ratios, advantage=1.0, lengths=None):
    """A rollout whose token ratios are given."""
    return inputs(
        [[-1 + log(r) for r in ratios]], old=[[-1.0] * len(ratios)], advantage=advantage, lengths=lengths
    )


def test_reinforce():
    x = moved(1.0, 2.0, advantage=3.0)
    out = PolicyGradient()(x)
    assert out.loss[0].tolist() == pytest.approx([3.0, 3 * (1 - log(2))])
    assert gradient(out.loss, x)[0].tolist() == [-3.0, -3.0]


def test_gspo_uses_the_geometric_mean_of_ratios():
    x = moved(2.0, 0.5, 8.0, lengths=[3])  # s = (8) ^ (1/3) = 2
    assert GSPO(low=0.5, high=2.0)(x).loss[0].tolist() == pytest.approx([-2.0] * 3)
    assert GSPO(low=0.2, high=0.2)(x).loss[0].tolist() == pytest.approx([-1.2] * 3)
    assert gradient(GSPO(low=0.2, high=0.2)(x).loss, x).abs().sum() == 0


def test_gspo_ignores_padding():
    x = inputs([[-1.0 + log(4), -1.0, -50.0]], old=[[-1.0, -1.0, 0.0]], advantage=1.0, lengths=[2])
    assert GSPO(high=9.0)(x).loss[0, :2].tolist() == pytest.approx([-2.0, -2.0])


def test_gspo_of_one_token_is_ppo():
    x = moved(1.3, advantage=2.0)
    for surrogate in (GSPO(0.2, 0.25), GSPO(0.2, 0.25, token_level=True)):
        assert surrogate(x).loss.item() == pytest.approx(PPOClip(0.2, 0.25)(x).loss.item())


def test_gspo_token_has_the_value_and_the_summed_gradient_of_gspo():
    x = moved(1.1, 0.9, 1.2, advantage=-1.5)
    whole, token = GSPO(0.5, 0.5)(x), GSPO(0.5, 0.5, token_level=True)(x)
    assert torch.allclose(whole.loss, token.loss)
    assert torch.allclose(gradient(whole.loss, x), gradient(token.loss, x))


@pytest.mark.parametrize(
    ("advantage", "expected"), [(2.0, -2 * exp((0.4 + log(0.5)) / 2)), (-2.0, 2 * exp((log(3) - 0.4) / 2))]
)
def test_gmpo(advantage, expected):
    x = moved(3.0, 0.5, advantage=advantage)  # A > 0 clips 3 to e^0.4; A < 0 clips 0.5 to e^-0.4
    out = GMPO()(x)
    assert out.loss[0].tolist() == pytest.approx([expected] * 2)
    grad = gradient(out.loss, x)[0].tolist()
    assert grad == pytest.approx([0.0, expected] if advantage > 0 else [expected, 0.0])


def test_cispo_bounds_the_weight_and_keeps_the_gradient():
    x = moved(9.0, 0.5, advantage=2.0)
    out = CISPO(high=4.0)(x)
    assert gradient(out.loss, x)[0].tolist() == pytest.approx([-10.0, -1.0])
    assert out.metrics["clip_fraction"][0].tolist() == [1.0, 0.0]
    assert gradient(CISPO(low=0.2)(x).loss, x)[0].tolist() == pytest.approx([-10.0, -1.6])


@pytest.mark.parametrize(("advantage", "tau"), [(2.0, 1.0), (-2.0, 1.05)])
def test_sapo(advantage, tau):
    x = moved(1.5, 1.0, advantage=advantage)
    out = SAPO()(x)
    gate = 1 / (1 + exp(-tau * 0.5))
    assert out.loss[0].tolist() == pytest.approx([-advantage * 4 / tau * gate, -advantage * 2 / tau])
    assert gradient(out.loss, x)[0].tolist() == pytest.approx(
        [-advantage * 4 * gate * (1 - gate) * 1.5, -advantage]
    )


@pytest.mark.parametrize(("advantage", "k", "lam"), [(1.0, 2.0, 3.0), (-1.0, 3.0, 2.0)])
def test_vespo(advantage, k, lam):
    x = moved(1.5, 0.8, advantage=advantage)  # w = 1.2
    phi = 1.2**k * exp(lam * (1 - 1.2))
    assert gradient(VESPO()(x).loss, x)[0].tolist() == pytest.approx([-advantage * phi] * 2)


def test_vespo_of_a_far_sequence_is_finite():
    x = inputs([[-1.0, -900.0]], old=[[-900.0, -1.0]], advantage=1.0)
    assert torch.isfinite(VESPO()(x).loss).all()


@pytest.mark.parametrize(
    "surrogate",
    [PPOClip(), GSPO(), GSPO(token_level=True), GMPO(), CISPO(), SAPO(), VESPO(), PolicyGradient()],
    ids=repr,
)
def test_on_policy_every_gradient_is_reinforce(surrogate):
    x = inputs([[-1.0, -2.0, -0.3], [-0.5, -0.7, 0.0]], advantage=[1.5, -0.5], lengths=[3, 2])
    expected = torch.tensor([[-1.5] * 3, [0.5, 0.5, 0.0]], dtype=torch.float64)
    assert torch.allclose(gradient(surrogate(x).loss, x), expected)
