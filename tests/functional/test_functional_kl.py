"""KL estimates and penalties: numbers by hand, means over the distribution, gradients, padding, refusals."""

from math import exp

import pytest
import torch

import vlrl.functional as F


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


@pytest.mark.parametrize(
    ("kind", "expected"), [("k1", -0.5), ("k2", 0.125), ("k3", exp(0.5) - 1.5), ("abs", 0.5)]
)
def test_estimates_by_hand(kind, expected):
    assert F.kl_estimate(row(-1.5), row(-1.0), kind=kind).item() == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(kind):
    logits = torch.randn(2, 6, dtype=torch.float64)
    policy, reference = logits.log_softmax(-1)
    exact = (policy.exp() * (policy - reference)).sum().item()
    every = F.kl_estimate(policy[None], reference[None], kind=kind)[0]
    assert (policy.exp() * every).sum().item() == pytest.approx(exact)


@pytest.mark.parametrize(("kind", "gradient", "truth"), [
    ("k2", "direct", "reverse"), ("k1", "k2", "reverse"), ("k3", "k2", "reverse"), ("k1", "importance",
        "reverse"), ("k3", "importance", "reverse"),
    ("k3", "direct", "forward"), ("k1", "direct", "none"),
])  # fmt: skip
def test_mean_gradients(kind, gradient, truth):
    """Over all tokens of the policy's distribution the gradient is that of KL(pi || ref), of KL(ref || pi),
    or zero."""
    logits = torch.randn(5, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(5, dtype=torch.float64).log_softmax(-1)
    policy = logits.log_softmax(-1)
    loss, _ = F.kl_penalty(
        policy[None], reference[None], kind=kind, gradient=gradient, old_logp_BT=policy[None].detach()
    )
    (own,) = torch.autograd.grad((policy.detach().exp() * loss[0]).sum(), logits, retain_graph=True)
    divergence = {
        "reverse": (policy.exp() * (policy - reference)).sum(),
        "forward": (reference.exp() * (reference - policy)).sum(),
        "none": 0.0 * policy.sum(),
    }[truth]
    assert torch.allclose(own, torch.autograd.grad(divergence, logits)[0], atol=1e-12)


def test_the_value_is_that_of_the_kind_whatever_the_gradient():
    logp, ref = torch.randn(2, 3, 4, dtype=torch.float64)
    for kind in ("k1", "k2", "k3", "abs"):
        value = F.kl_estimate(logp, ref, kind=kind)
        for gradient in ("direct", "k2"):
            loss, metrics = F.kl_penalty(logp, ref, kind=kind, gradient=gradient)
            assert torch.allclose(loss, value) and torch.equal(metrics["kl"], value)
        assert torch.allclose(
            F.kl_penalty(logp, ref, kind=kind, gradient="importance", old_logp_BT=logp).loss, value
        )


def test_bounds():
    logp, ref = row(-30.0, -1.0), row(0.0, -1.5)
    assert F.kl_estimate(logp, ref, kind="k1", clamp_log=20.0).tolist() == [[-20.0, 0.5]]
    assert F.kl_estimate(logp, ref, kind="k3", clamp_log=20.0, clamp_value=10.0)[0, 0].item() == 10.0


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("gradient", ["direct", "k2", "importance"])
@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs"])
def test_what_stands_outside_the_mask_reaches_nothing(kind, gradient, garbage):
    mask = torch.tensor([[1, 1, 0]])
    logp = row(-1.0, -2.0, garbage).requires_grad_()
    loss, metrics = F.kl_penalty(
        logp,
        row(-1.5, -1.3, garbage),
        mask,
        kind=kind,
        gradient=gradient,
        old_logp_BT=row(-1.0, -1.8, garbage),
    )
    loss.sum().backward()
    assert torch.isfinite(loss).all() and loss[0, 2] == 0 and metrics["kl"][0, 2] == 0
    assert torch.isfinite(logp.grad).all() and logp.grad[0, 2] == 0 and logp.grad[0, 1] != 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "k4"}, r"kind='k4' is not known; choose one of 'k1', 'k2', 'k3', 'abs'"),
        ({"gradient": "none"}, r"gradient='none' is not known; choose one of 'direct', 'k2', 'importance'"),
        ({"gradient": "importance"}, r"old_logp_BT=None; gradient='importance' needs"),
        ({"clamp_log": -1.0}, r"clamp_log=-1\.0 and clamp_value=0\.0 must not be negative"),
        ({"mask_BT": torch.ones(1, 3)}, r"mask_BT has shape \(1, 3\), logp_BT \(1, 2\)"),
    ],
)
def test_mistakes_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        F.kl_penalty(row(-1.0, -1.0), row(-1.0, -1.0), **settings)


def test_k2s_gradient_survives_the_bounds():
    """With clamp_value 10 the value of k2 stops at |u| = sqrt(20) = 4.47; its gradient, u, must not."""
    logp = row(-9.0, -1.0, -30.0).requires_grad_()
    loss, metrics = F.kl_penalty(
        logp, row(-1.0, -1.5, -1.0), kind="k3", gradient="k2", clamp_log=20.0, clamp_value=10.0
    )
    (gradient,) = torch.autograd.grad(loss.sum(), logp)
    assert gradient[0].tolist() == pytest.approx([-8.0, 0.5, -29.0])
    assert metrics["kl"][0].tolist() == pytest.approx([10.0, exp(-0.5) - 0.5, 10.0])


def test_adaptive_coefficient():
    assert F.adaptive_kl_coef(0.2, kl=3.0, target=6.0, steps=50, horizon=1000) == pytest.approx(
        0.2 * (1 - 0.2 * 0.05)
    )
    assert F.adaptive_kl_coef(0.2, kl=6.6, target=6.0, steps=50, horizon=1000) == pytest.approx(
        0.2 * (1 + 0.1 * 0.05)
    )
    assert F.adaptive_kl_coef(0.2, kl=6.0, target=6.0) == 0.2
    with pytest.raises(ValueError, match=r"target=0\.0 and horizon=10000\.0 must be above 0"):
        F.adaptive_kl_coef(0.2, kl=6.0, target=0.0)
