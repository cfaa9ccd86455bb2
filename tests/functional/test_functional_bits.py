"""The order of floating-point operations is fixed: each function gives, bit by bit, what its expression
written out gives.

A run of a given seed must not change because a formula was rearranged. The references multiply by the mask
and use Python floats, as a loss or an estimator written by hand would.
"""

import math

import pytest
import torch

import vlrl.functional as F

SPREADS = pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 4.0])


def batch(spread):
    logp = -3 * torch.rand(6, 8)
    mask = (
        (torch.arange(8)[None] < torch.tensor([8, 5, 1, 0, 7, 3])[:, None]) & (torch.rand(6, 8) > 0.2)
    ).float()
    return logp.requires_grad_(), logp.detach() + spread * torch.randn(6, 8), torch.randn(6, 8), mask


def clipped(ratio, a, low, high):
    return -torch.minimum(
        ratio * a, torch.maximum(torch.minimum(ratio, torch.tensor(1.0 + high)), torch.tensor(1.0 - low)) * a
    )


def ppo(logp, old, a, mask):
    return clipped(((logp - old) * mask).exp(), a, 0.2, 0.28)


def gspo(logp, old, a, mask):
    log_s = (((logp - old) * mask).sum(-1) / mask.sum(-1).clamp(min=1))[:, None]
    return clipped(log_s.expand_as(logp).exp(), a, 0.1, 0.2)


def gspo_token(logp, old, a, mask):
    log_s = (((logp - old) * mask).sum(-1) / mask.sum(-1).clamp(min=1))[:, None]
    return clipped((log_s.detach() + logp - logp.detach()).exp(), a, 0.1, 0.2)


def cispo(logp, old, a, mask):
    return -((logp - old) * mask).exp().detach().clamp(0.0, 5.0) * a * logp


def gmpo(logp, old, a, mask):
    log_r = (logp - old) * mask
    bounded = torch.where(a > 0, log_r.clamp(max=0.4), log_r.clamp(min=-0.4))
    return -a * ((bounded * mask).sum(-1) / mask.sum(-1).clamp(min=1)).exp()[:, None]


def sapo(logp, old, a, mask):
    tau = torch.where(a > 0, 1.0, 1.05)
    return -(torch.sigmoid(tau * (((logp - old) * mask).exp() - 1)) * 4 / tau) * a


def vespo(logp, old, a, mask):
    log_w = ((logp - old) * mask).detach().clamp(-20, 20).sum(-1).clamp(math.log(1e-8), 20)
    k, lam = torch.where(a >= 0, 2.0, 3.0), torch.where(a >= 0, 3.0, 2.0)
    return -(lam + k * log_w[:, None] - lam * log_w.exp()[:, None]).exp() * a * logp


def cpgd(logp, old, a, mask):
    d = (logp - old) * mask
    return -torch.minimum(d * a, d.clamp(math.log(0.8), math.log(1.2)) * a)


def mirror_descent(logp, old, a, mask):
    drift = ((logp - old) * mask).sum(-1)
    return (
        -((a * mask).sum(-1) / mask.sum(-1).clamp(min=1)) * (logp * mask).sum(-1) + 0.1 / 2 * drift.square()
    )


def kl_importance(logp, old, a, mask):
    u = (a - logp) * mask  # a stands for the reference's log-probs
    return ((logp - old) * mask).exp() * (torch.expm1(u) - u)


LOSSES = {
    ppo: lambda *x: F.ppo_clip_loss(*x, 0.2, 0.28).loss,
    gspo: lambda *x: F.gspo_loss(*x, 0.1, 0.2).loss,
    gspo_token: lambda *x: F.gspo_token_loss(*x, 0.1, 0.2).loss,
    cispo: lambda *x: F.cispo_loss(*x).loss,
    gmpo: lambda *x: F.gmpo_loss(*x).loss,
    sapo: lambda *x: F.sapo_loss(*x).loss,
    vespo: lambda *x: F.vespo_loss(*x).loss,
    cpgd: lambda *x: F.cpgd_loss(*x).loss,
    mirror_descent: lambda *x: F.mirror_descent_loss(*x).loss,
    kl_importance: lambda logp, old, a, mask: (
        F.kl_penalty(logp, a, mask, gradient="importance", old_logp_BT=old).loss
    ),
}


@SPREADS
@pytest.mark.parametrize("reference", LOSSES, ids=lambda f: f.__name__)
def test_losses_and_gradients(reference, spread):
    logp, old, a, mask = batch(spread)
    weights, other = (
        torch.rand(6, 8),
        torch.rand(6, 8),
    )  # a second use of logp: contributions to its gradient add up in the same order
    gradients, values = [], []
    for loss in (reference, LOSSES[reference]):
        value = loss(logp, old, a, mask)
        total = (
            torch.where(mask > 0, weights * value, 0.0).sum()
            if value.dim() == 2
            else (weights[:, 0] * value).sum()
        )
        (gradient,) = torch.autograd.grad(total + (other * logp * mask).sum(), logp)
        gradients.append(gradient)
        values.append(value[mask > 0] if value.dim() == 2 else value)
    assert torch.equal(*values)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("length", [1, 5, 9])
def test_gae_is_the_recursion_over_python_floats(length):
    rewards, values = torch.randn(2, 3, length, dtype=torch.float64)
    for row, (r, v) in enumerate(zip(rewards.tolist(), values.tolist())):
        expected, following, advantage = [0.0] * length, 0.0, 0.0
        for t in range(length - 1, -1, -1):
            advantage = r[t] + 0.99 * following - v[t] + 0.99 * 0.95 * advantage
            expected[t], following = advantage, v[t]
        own, targets = F.gae(rewards, values, gamma=0.99, lam=0.95)
        assert own[row].tolist() == expected
        assert targets[row].tolist() == [a + b for a, b in zip(expected, v)]


def test_advantages_are_those_of_exactly_rounded_sums():
    rewards, lengths = torch.rand(7, dtype=torch.float64), torch.randint(1, 9, (7,))
    r, n, groups = rewards.tolist(), lengths.tolist(), torch.zeros(7, dtype=torch.long)
    mean = math.fsum(r) / 7
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in r) / 6)
    total = math.fsum(r)
    assert F.group_advantages(rewards, groups).tolist() == [(v - mean) / (std + 1e-6) for v in r]
    assert F.rloo_advantages(rewards, groups).tolist() == [v - (total - v) / 6 for v in r]
    assert F.maxrl_advantages(rewards, groups).tolist() == [(v - mean) / mean for v in r]
    baseline = math.fsum(v * k for v, k in zip(r, n)) / sum(n)
    assert F.opo_advantages(rewards, lengths, groups).tolist() == [v - baseline for v in r]
    spread = math.sqrt(math.fsum(k * (v - baseline) ** 2 for v, k in zip(r, n)) / (sum(n) - 1) + 1e-8)
    assert F.reinforce_pp_advantages(rewards, lengths).tolist() == [(v - baseline) / spread for v in r]


def test_lengths_are_rewarded_as_python_floats_are():
    n = [1, 5, 7, 8, 9, 12]
    assert F.overlong_penalty(torch.tensor(n), 9, 2.7).tolist() == [
        -min(max((k - 9 + 2.7) / 2.7, 0.0), 1.0) for k in n
    ]
    own = F.kimi_length_reward(torch.tensor(n), torch.ones(6), torch.zeros(6, dtype=torch.long)).tolist()
    assert own == [0.5 - (k - 1) / 11 for k in n]
