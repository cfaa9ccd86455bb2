"""Divergences to a teacher: numbers by hand, gradients by autograd and by sampling, the rest."""

from __future__ import annotations

import math

import pytest
import torch

from vlrl.functional import (
    divergence,
    sampled_divergence,
    shared_spans,
    top_and_rest,
    with_gradient,
)

PI, T = [0.7, 0.2, 0.1], [0.5, 0.1, 0.4]
KINDS = ("reverse", "forward", "jsd")


def by_hand(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q) if a)


def wanted(kind, beta=0.5, p=PI, t=T):
    mixed = [beta * b + (1 - beta) * a for a, b in zip(p, t)]
    return {
        "reverse": by_hand(p, t),
        "forward": by_hand(t, p),
        "jsd": beta * by_hand(t, mixed) + (1 - beta) * by_hand(p, mixed),
    }[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beta", [0.5, 0.1, 0.9])
def test_divergences_by_hand(kind, beta):
    found = divergence(torch.tensor(PI).log(), torch.tensor(T).log(), kind, beta)
    assert found.item() == pytest.approx(wanted(kind, beta), abs=1e-6)
    assert divergence(torch.tensor(PI).log(), torch.tensor(PI).log(), kind, beta).item() == pytest.approx(
        0, abs=1e-6
    )


def test_known_numbers():
    """0.7 log 1.4 + 0.2 log 2 + 0.1 log 0.25; 0.5 log (5/7) + 0.1 log 0.5 + 0.4 log 4."""
    assert wanted("reverse") == pytest.approx(0.2355304 + 0.1386294 - 0.1386294, abs=1e-6)
    assert wanted("forward") == pytest.approx(-0.1682361 - 0.0693147 + 0.5545177, abs=1e-6)
    assert wanted("jsd") == pytest.approx(wanted("jsd", p=T, t=PI))  # symmetric at one half


def test_the_jsd_tends_to_both_ends():
    pi, t = torch.tensor(PI, dtype=torch.float64).log(), torch.tensor(T, dtype=torch.float64).log()
    assert divergence(pi, t, "jsd", 1e-4).item() / 1e-4 == pytest.approx(wanted("forward"), rel=1e-2)
    assert divergence(pi, t, "jsd", 1 - 1e-4).item() / 1e-4 == pytest.approx(wanted("reverse"), rel=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradients_are_those_of_the_numbers(kind):
    logits = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    other = torch.randn(3, 7, dtype=torch.float64).log_softmax(-1)
    assert torch.autograd.gradcheck(lambda x: divergence(x.log_softmax(-1), other, kind, 0.3), (logits,))
    ids = torch.tensor([[0, 3], [6, 1], [2, 5]])
    rest = top_and_rest(other, ids)
    assert torch.autograd.gradcheck(lambda x: divergence(top_and_rest(x, ids), rest, kind, 0.3), (logits,))


@pytest.mark.parametrize("kind", KINDS)
def test_impossible_outcomes(kind):
    """A token that neither says adds nothing; one that the teacher never says is dear, and finite."""
    pi = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25]]).log().requires_grad_()
    t = torch.tensor([[0.9, 0.1, 0.0], [0.9, 0.1, 0.0]]).log()
    found = divergence(pi, t, kind)
    assert found[0].item() == pytest.approx(wanted(kind, p=[0.5, 0.5], t=[0.9, 0.1]), abs=1e-6)
    assert torch.isfinite(found).all() and found[1] > found[0]
    found.sum().backward()
    assert torch.isfinite(pi.grad).all()


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_tokens_give_value_and_gradient(kind):
    """The expectation over pi of estimate and factor are the divergence and its gradient, summed exactly."""
    logits = torch.tensor([0.3, -0.2, 1.0, 0.1], dtype=torch.float64, requires_grad=True)
    t = torch.tensor([0.1, 0.5, -0.4, 0.9], dtype=torch.float64).log_softmax(-1)
    logp = logits.log_softmax(-1)
    estimate, factor = sampled_divergence(logp, t, kind, 0.3)
    assert (estimate >= 0).all()
    exact = divergence(logp, t, kind, 0.3)
    p = logp.detach().exp()
    assert (p * estimate).sum().item() == pytest.approx(exact.item(), abs=1e-12)
    (slope,) = torch.autograd.grad(exact, logits, retain_graph=True)
    (mean,) = torch.autograd.grad((p * with_gradient(estimate, factor, logp)).sum(), logits)
    torch.testing.assert_close(mean, slope, rtol=0, atol=1e-12)


def test_drawn_tokens_by_hand():
    u = torch.tensor([0.5, -1.0])
    logp = torch.full((2,), -2.0)
    estimate, factor = sampled_divergence(logp, logp + u, "reverse")
    assert estimate.tolist() == pytest.approx([math.exp(0.5) - 1.5, math.exp(-1)])
    assert factor.tolist() == pytest.approx([-0.5, 1.0])
    estimate, factor = sampled_divergence(logp, logp + u, "forward")
    assert estimate.tolist() == pytest.approx([0.5 * math.exp(0.5) - math.exp(0.5) + 1, 1 - 2 * math.exp(-1)])
    assert factor.tolist() == pytest.approx([1 - math.exp(0.5), 1 - math.exp(-1)])
    _, factor = sampled_divergence(logp, logp + 30, "reverse", clamp_log=10)
    assert factor.tolist() == [-10.0, -10.0]


def test_the_rest_is_one_outcome():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log() + 3
    found = top_and_rest(logits, torch.tensor([[3, 0]])).exp()[0].tolist()
    assert found == pytest.approx([0.1, 0.4, 0.5], abs=1e-6)
    assert top_and_rest(logits, torch.tensor([[-1, 0]])).exp()[0].tolist() == pytest.approx(
        [0.0, 0.4, 0.6], abs=1e-6
    )
    assert top_and_rest(logits, torch.tensor([[-1, -1]])).exp()[0].tolist() == pytest.approx(
        [0.0, 0.0, 1.0], abs=1e-6
    )
    assert top_and_rest(logits, torch.tensor([[3, 1, 0, 2]])).exp()[0].tolist() == pytest.approx(
        [0.1, 0.3, 0.4, 0.2, 0.0], abs=1e-6
    )


def test_top_1_by_hand():
    """pi = (.2, .3, .5), T = (.5, .3, .2); T's likeliest token against all others is (.2, .8) and (.5, .5):
    KL(pi || T) = .2 ln .4 + .8 ln 1.6 = .19274, KL(T || pi) = .5 ln 2.5 + .5 ln .625 = .22314."""
    pi, t = (torch.tensor([p]).log() for p in ([0.2, 0.3, 0.5], [0.5, 0.3, 0.2]))
    ids = t.topk(1, dim=-1).indices
    own, other = top_and_rest(pi, ids), top_and_rest(t, ids)
    assert divergence(own, other, "reverse").item() == pytest.approx(0.19274, abs=1e-5)
    assert divergence(own, other, "forward").item() == pytest.approx(0.22314, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_top_k_rises_to_the_whole(kind):
    """A coarser partition has a smaller divergence; all tokens named, it is the divergence."""
    pi, t = torch.randn(5, 9, generator=torch.manual_seed(1)), torch.randn(5, 9)
    full = divergence(pi.log_softmax(-1), t.log_softmax(-1), kind)
    found = []
    for k in (1, 3, 6, 9):
        ids = t.topk(k, dim=-1).indices
        found.append(divergence(top_and_rest(pi, ids), top_and_rest(t, ids), kind))
    assert all((a <= b + 1e-6).all() for a, b in zip(found, found[1:]))
    torch.testing.assert_close(found[-1], full, rtol=0, atol=1e-6)
    grads = []
    for named in (False, True):
        x = pi.clone().requires_grad_()
        ids = t.topk(9, dim=-1).indices
        own, other = (
            (top_and_rest(x, ids), top_and_rest(t, ids)) if named else (x.log_softmax(-1), t.log_softmax(-1))
        )
        divergence(own, other, kind).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=1e-6)


def test_spans():
    assert shared_spans([1, 2, 3], [1, 2, 3]) == [(range(i, i + 1), range(i, i + 1)) for i in range(3)]
    assert shared_spans([3], [1, 2, 3]) == [(range(0, 1), range(0, 3))]
    assert shared_spans([1, None, 3], [1, 3]) == [(range(0, 1), range(0, 1)), (range(1, 3), range(1, 2))]
    assert shared_spans([2], [1, 3]) == []
    assert shared_spans([], []) == []


def test_wrong_arguments():
    with pytest.raises(ValueError, match="kind='both'"):
        divergence(torch.zeros(2), torch.zeros(2), "both")
    for beta in (0.0, 1.0):
        with pytest.raises(ValueError, match="forward and reverse"):
            divergence(torch.zeros(2), torch.zeros(2), "jsd", beta)
        with pytest.raises(ValueError, match="forward and reverse"):
            sampled_divergence(torch.zeros(2), torch.zeros(2), "jsd", beta)


def test_wrong_shapes_are_named():
    two, three = torch.zeros(2), torch.zeros(3)
    with pytest.raises(ValueError, match=r"teacher_V has shape \(3,\), logp_V \(2,\); they must be equal"):
        divergence(two, three)
    with pytest.raises(ValueError, match=r"teacher has shape \(3,\), logp \(2,\)"):
        sampled_divergence(two, three)
    with pytest.raises(ValueError, match=r"factor has shape \(3,\), value \(2,\)"):
        with_gradient(two, three, two)
    with pytest.raises(ValueError, match=r"ids_NK has shape \(3, 1\), logits_NV \(2, 4\)"):
        top_and_rest(torch.zeros(2, 4), torch.zeros(3, 1, dtype=torch.long))
    with pytest.raises(ValueError, match=r"second=\[3, 1\] decreases"):
        shared_spans([1, None, 3], [3, 1])
