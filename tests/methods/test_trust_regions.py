"""Clip bounds that depend on the token: DCPO, ETR, Archer, DHPO, SimKO, CPGD, Clip-Cov, KL-Cov."""

from math import log, sqrt, tanh

import pytest
import torch
from make import gradient, inputs

from vlrl.methods.core.policy_loss import PPOClip
from vlrl.methods.papers.archer import Archer, ArcherLowEntropyKl
from vlrl.methods.papers.cpgd import CPGD, CpgdPolicyDrift
from vlrl.methods.papers.dcpo import DCPO
from vlrl.methods.papers.dhpo import DHPO
from vlrl.methods.papers.entropy_mechanism import EntropyMechanismClipCov, EntropyMechanismKlCov, covariance
from vlrl.methods.papers.etr import ETR
from vlrl.methods.papers.gspo import GSPO
from vlrl.methods.papers.simko import SimKO


def test_dcpo_bounds_by_hand():
    # q = 0.8: upper 0.5 + 0.5 sqrt(2), lower 0.5 + 0.5 sqrt(0.2); q = 0.01: upper 0.5 + 0.5 * 9
    old = [[log(0.8), log(0.01), log(0.8)]]
    x = inputs([[log(0.8 * 1.5), log(0.01 * 30), log(0.8 * 1.1)]], old=old, advantage=1.0)
    assert DCPO()(x).loss[0].tolist() == pytest.approx([-(0.5 + 0.5 * sqrt(2)), -5.0, -1.1])
    x = inputs([[log(0.8 * 0.5), log(0.01 * 0.1), log(0.8 * 0.9)]], old=old, advantage=-1.0)
    assert DCPO()(x).loss[0].tolist() == pytest.approx([0.5 + 0.5 * sqrt(0.2), 0.5, 0.9])


def test_dcpo_upper_bound_is_capped():
    x = inputs([[log(1e-6 * 50)]], old=[[log(1e-6)]], advantage=1.0)
    assert DCPO(r_max=10)(x).loss.item() == pytest.approx(-10.0)


def test_etr_stretches_with_signal_and_difficulty():
    x = inputs(
        [[log(3.0)], [log(3.0)]], old=[[0.0], [0.0]], advantage=[2.0, 0.5], reward=[1.0, 0.0]
    )  # p = 1/2
    expected = [-2 * (1 + 0.2 * (1 + 0.5 * tanh(2)) * 1.5), -0.5 * (1 + 0.2 * (1 + 0.5 * tanh(0.5)) * 1.5)]
    assert ETR()(x).loss[:, 0].tolist() == pytest.approx(expected)
    assert torch.equal(ETR(micro=0, macro=0)(x).loss, PPOClip()(x).loss)


ENTROPY = [[0.1, 0.2, 0.3, 0.4, 2.0]]


def test_archer_widens_where_entropy_is_high():
    x = inputs([[log(1.9)] * 5], old=[[0.0] * 5], advantage=1.0, entropy=ENTROPY)
    assert Archer()(x).loss[0].tolist() == pytest.approx([-1.2] * 4 + [-1.5])


def test_archer_bounds_the_loss_of_what_became_likely_though_wrong():
    x = inputs([[log(12.0)] * 5], old=[[0.0] * 5], advantage=-1.0, entropy=ENTROPY)
    assert Archer()(x).loss[0].tolist() == pytest.approx([12.0] * 5)  # PPO's clip has no bound on this side
    assert Archer(dual_clip=10.0)(x).loss[0].tolist() == pytest.approx([10.0] * 5)


def test_archer_kl_is_a_mean_over_each_kind_of_token():
    """k2 of 0.5 nats is 0.125; four of five tokens are of low entropy: 0.125 * 5 / 4 each, whose mean over
    the five is 0.125, the mean over the low ones (dp_actor.py: agg_loss with the mask of one kind)."""
    x = inputs([[-1.0] * 5], ref_logp=[[-1.5] * 5], entropy=ENTROPY)
    loss_T = ArcherLowEntropyKl(estimator="k2")(x).loss[0]
    assert loss_T.tolist() == pytest.approx([0.15625] * 4 + [0.0]) and loss_T.mean().item() == pytest.approx(
        0.125
    )
    both_T = ArcherLowEntropyKl(estimator="k2", high_entropy_coef=0.5)(x).loss[0]
    assert both_T.tolist() == pytest.approx([0.15625] * 4 + [0.3125])


@pytest.mark.parametrize(
    ("entropy", "high"),
    [
        ([0.3], []),  # the quantile of one token is that token
        ([0.1, 0.2], [1]),  # above 0.1 + 0.8 * 0.1
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [5]),  # place 0.8 * 5 is the fifth token itself
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], [5, 6]),  # place 4.8: above 0.58
        ([0.5, 0.5, 0.5, 0.5, 0.5, 0.5], []),  # none is above its equals
    ],
)
def test_archer_splits_at_the_quantile(entropy, high):
    x = inputs([[log(1.9)] * len(entropy)], old=[[0.0] * len(entropy)], advantage=1.0, entropy=[entropy])
    expected = [-1.5 if place in high else -1.2 for place in range(len(entropy))]
    assert Archer()(x).loss[0].tolist() == pytest.approx(expected)


def test_dhpo_averages_two_clipped_branches():
    x = inputs([[log(2.0), log(0.5)]], old=[[0.0, 0.0]], advantage=1.0)  # s = 1
    out = DHPO()(x)
    assert out.loss[0].tolist() == pytest.approx([-(1.2 + 1.0) / 2, -(0.5 + 1.0) / 2])


def test_dhpo_ends_are_ppo_and_gspo():
    x = inputs([[-1.1, -0.7, -1.4]], old=[[-1.0] * 3], advantage=-1.0, entropy=[[0.0, 0.5, 1.0]])
    assert torch.allclose(DHPO(share=1.0)(x).loss, PPOClip()(x).loss)
    assert torch.allclose(DHPO(share=0.0)(x).loss, GSPO()(x).loss)
    mixed = DHPO(mixing="entropy")(x).loss[0]
    assert mixed[0].item() == pytest.approx(GSPO()(x).loss[0, 0].item()) and mixed[2].item() == pytest.approx(
        PPOClip()(x).loss[0, 2].item()
    )
    assert DHPO(mixing="entropy").needs == ("entropy",) and DHPO().needs == ()


def simko_inputs(advantage):
    top = torch.tensor([[[-0.5, -1.0, -2.0]] * 5], dtype=torch.float64, requires_grad=True)
    x = inputs([[-1.0] * 4 + [-0.5]], old=[[-1.0] * 4 + [-0.5]], advantage=advantage, entropy=ENTROPY)
    x.aux_tensors["simko.topk_logp"] = top
    return x, top


def test_simko_smooths_right_tokens_over_candidates():
    x, top = simko_inputs(1.0)
    loss = SimKO(smoothing=0.3)(x).loss
    assert loss[0].tolist() == pytest.approx([-1.0] * 5)  # values stay those of the ratio
    own, candidates = torch.autograd.grad(loss.sum(), [x.logp_BT, top])
    assert own[0].tolist() == pytest.approx([-1.0] * 4 + [-0.7])
    assert candidates[0, 4].tolist() == pytest.approx([-0.1] * 3) and candidates[0, :4].abs().sum() == 0


def test_simko_presses_harder_on_a_wrong_top_candidate():
    x, _ = simko_inputs(-1.0)
    assert SimKO()(x).loss[0].tolist() == pytest.approx([1.0] * 4 + [1.1])
    x.aux_tensors["simko.topk_logp"] = torch.full(
        (1, 5, 3), -0.1, dtype=torch.float64
    )  # now something else is likelier
    assert SimKO()(x).loss[0].tolist() == pytest.approx([1.0] * 5)


@pytest.mark.parametrize(
    ("advantage", "loss", "grad"),
    [(2.0, [-2 * log(1.2), 2 * log(2)], [0.0, -2.0]), (-2.0, [2 * log(1.5), 2 * log(0.8)], [2.0, 0.0])],
)
def test_cpgd(advantage, loss, grad):
    x = inputs([[log(1.5), log(0.5)]], old=[[0.0, 0.0]], advantage=advantage)
    out = CPGD()(x)
    assert out.loss[0].tolist() == pytest.approx(loss)
    assert gradient(out.loss, x)[0].tolist() == pytest.approx(grad)


def test_policy_drift_caps_its_ratio():
    x = inputs([[log(9.0), log(0.5)]], old=[[0.0, 0.0]])
    out = CpgdPolicyDrift(cap=3.0)(x)
    assert out.loss[0].tolist() == pytest.approx([8 - log(9), -0.5 + log(2)])
    assert gradient(out.loss, x)[0].tolist() == pytest.approx([2.0, -0.5])
    same = inputs([[-1.0]])
    assert (
        CpgdPolicyDrift()(same).loss.item() == 0 and gradient(CpgdPolicyDrift()(same).loss, same).item() == 0
    )


def test_covariance_by_hand():
    x = inputs(
        [[-1.0, -3.0], [-2.0, 0.0]], advantage=[1.0, -2.0], lengths=[2, 1]
    )  # means over three tokens: -2 and 0
    assert covariance(x).tolist() == [[1.0, -1.0], [0.0, 0.0]]


def test_clip_cov_holds_back_only_eligible_tokens():
    x = inputs([[-0.1, -3.0, -3.0], [-3.0, -3.0, -3.0]], advantage=[3.0, -3.0])
    held = EntropyMechanismClipCov(share=1e-6, cov_low=5.0, cov_high=50.0)(x)
    assert held.metrics["held_back"].tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert gradient(held.loss, x).tolist() == [[0.0, -3.0, -3.0], [3.0, 3.0, 3.0]]
    assert torch.equal(EntropyMechanismClipCov(cov_low=60.0, cov_high=70.0)(x).loss, PPOClip()(x).loss)


def test_clip_cov_repeats_itself():
    x = inputs([[-0.1, -0.2, -3.0, -0.3]], advantage=[[3.0, 3.0, -3.0, 3.0]])
    a, b = (
        EntropyMechanismClipCov(share=0.5, cov_low=0.01, cov_high=99)(x).metrics["held_back"]
        for _ in range(2)
    )
    assert torch.equal(a, b) and a.sum() == 2


def test_kl_cov_penalises_the_drift_of_the_top():
    x = inputs([[log(1.5), -3.0], [-3.0, -3.0]], old=[[0.0, -3.0], [-3.0, -3.0]], advantage=[3.0, -3.0])
    out = EntropyMechanismKlCov(share=0.25, beta=2.0)(x)
    assert (
        out.loss[0, 0].item() == pytest.approx(-1.5 * 3 + 2 * log(1.5))
        and out.metrics["held_back"].sum() == 1
    )
    assert out.loss[0, 1].item() == pytest.approx(-3.0)
