"""KL estimators: values by hand, gradients against the exact KL of a categorical."""

from math import exp, log

import pytest
import torch
from make import gradient, inputs

from vlrl.methods.core.loss_term import KL, NLL, EntropyBonus


@pytest.mark.parametrize(("kind", "value"), [("k1", 0.5), ("k2", 0.125), ("k3", exp(-0.5) - 1 + 0.5)])
def test_by_hand(kind, value):
    x = inputs([[-1.0]], ref_logp=[[-1.5]])
    out = KL(estimator=kind)(x)
    assert out.loss.item() == pytest.approx(value) and out.metrics["kl"].item() == pytest.approx(value)
    assert not out.metrics["kl"].requires_grad


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("correction", ["direct", "k2", "importance"])
def test_zero_where_the_policies_agree(kind, correction):
    x = inputs([[-1.0, -2.0]], ref_logp=[[-1.0, -2.0]])
    assert KL(estimator=kind, gradient=correction)(x).loss.abs().max() == 0


def expected(kind, correction):
    """Expectation over the policy's samples of value and gradient (of the logits)."""
    logits = torch.tensor([0.2, -0.4, 1.0], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([0.5, 0.1, -0.3], dtype=torch.float64).log_softmax(-1)
    logp = logits.log_softmax(-1)
    x = inputs([[0.0] * 3], ref_logp=ref[None])
    x.logp_BT, x.old_logp_BT = logp[None], logp.detach()[None]
    loss = (logp.detach().exp() * KL(estimator=kind, gradient=correction)(x).loss[0]).sum()
    exact = (logp.exp() * (logp - ref)).sum()
    return (
        loss,
        torch.autograd.grad(loss, logits, retain_graph=True)[0],
        exact,
        torch.autograd.grad(exact, logits)[0],
    )


@pytest.mark.parametrize(
    ("kind", "correction"),
    [("k2", "direct"), ("k1", "k2"), ("k3", "k2"), ("k1", "importance"), ("k3", "importance")],
)
def test_corrected_gradients_are_the_exact_ones(kind, correction):
    loss, grad, exact, exact_grad = expected(kind, correction)
    assert torch.allclose(grad, exact_grad, atol=1e-12)
    if kind != "k2":
        assert loss.item() == pytest.approx(exact.item())


def test_direct_gradients_are_not():
    assert expected("k1", "direct")[1].abs().max() < 1e-12
    _, grad, _, exact_grad = expected("k3", "direct")
    assert not torch.allclose(grad, exact_grad, atol=1e-3)


def test_clamps():
    x = inputs([[-30.0]], ref_logp=[[-1.0]])
    assert KL(estimator="k1", clamp_log=20)(x).loss.item() == -20
    assert KL(estimator="k3", clamp_log=20, clamp_value=10)(x).loss.item() == 10


def test_needs_follow_the_reference():
    assert KL(ref="other_logp").needs == ("other_logp",)
    with pytest.raises(KeyError, match="other_logp"):
        KL(ref="other_logp")(inputs([[-1.0]], ref_logp=[[-1.0]]))


def test_entropy_bonus():
    assert EntropyBonus()(inputs([[-1.0, -1.0]], entropy=[[0.3, 0.7]])).loss.tolist() == [[-0.3, -0.7]]


def test_nll_keeps_sources_and_rewards():
    x = inputs([[-1.0], [-2.0], [-log(2)]], reward=[0.0, 1.0, 1.0])
    x.batch.rollouts[1].source = "expert"
    assert NLL()(x).loss[:, 0].tolist() == pytest.approx([1.0, 2.0, log(2)])
    assert NLL(source="expert")(x).loss[:, 0].tolist() == [0.0, 2.0, 0.0]
    out = NLL(min_reward=1.0)(x)
    assert out.loss[:, 0].tolist() == pytest.approx([0.0, 2.0, log(2)])
    assert gradient(out.loss, x)[:, 0].tolist() == [0.0, -1.0, -1.0]
