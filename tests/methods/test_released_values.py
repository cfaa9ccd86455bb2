"""Values by hand of formulas that were read in the authors' code: each test names the repository and the
file."""

from __future__ import annotations

from math import log, sqrt
from types import SimpleNamespace

import pytest
import torch
from make import base_run, gradient, group, inputs

from vlrl.methods.core.advantage import GRPO
from vlrl.methods.core.loss_term import KL
from vlrl.methods.papers.dph_rl import DphRl, DphRlFDivergence
from vlrl.methods.papers.entropy_mechanism import EntropyMechanismClipCov, EntropyMechanismKlCov, covariance


def test_covariance_over_the_micro_batch():
    """PRIME-RL/Entropy-Mechanism-of-RL 88505792, core_algos.py: the means are those of all tokens, here -2
    and 0.5, not those of each group."""
    x = inputs([[-1.0, -3.0], [-2.0, -2.0]], advantage=[1.0, 0.0], group_of=[0, 1])
    assert covariance(x, "batch").tolist() == [[0.5, -0.5], [0.0, 0.0]]
    assert covariance(x, "group").abs().sum() == 0  # each group has one advantage


def test_kl_cov_ranks_all_tokens_of_the_micro_batch():
    """max(1, int(n share)) of all n = 4 tokens: one token, where ranking by group takes one of each group."""
    x = inputs(
        [[log(0.5), -3.0], [-2.0, -4.0]],
        old=[[log(0.25), -3.0], [-2.0, -4.0]],
        advantage=[2.0, -2.0],
        group_of=[0, 1],
    )
    out = EntropyMechanismKlCov(share=0.25, beta=3.0, scope="batch")(x)
    assert out.metrics["held_back"].tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert out.loss[0, 0].item() == pytest.approx(-2 * 2 + 3 * log(2))
    assert EntropyMechanismKlCov(share=0.25, scope="group")(x).metrics["held_back"].sum() == 2


def test_clip_cov_draws_from_all_tokens_of_the_micro_batch():
    x = inputs(
        [[-0.1, -3.0], [-3.0, -0.1]], advantage=[3.0, -3.0], group_of=[0, 1]
    )  # covariances: 4.35, -4.35 and 4.35, -4.35
    out = EntropyMechanismClipCov(share=1e-6, cov_low=1.0, cov_high=5.0, scope="batch")(x)
    held = out.metrics["held_back"]
    assert held.sum() == 1 and held[0, 1] == held[1, 1] == 0
    assert EntropyMechanismClipCov(share=0.5, cov_low=1.0, cov_high=5.0, scope="batch")(x).metrics[
        "held_back"
    ].tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_grpo_advantages_normalised_over_the_tokens_of_the_step():
    """inclusionAI/AReaL 4aef98d8, reward_norm by group and adv_norm by batch: +-a by group over 1 + 3 tokens,
    so mean -a / 2 and variance a^2."""
    rewards = group(1.0, 0.0, lengths=[1, 3])
    a = 0.5 / (sqrt(0.5) + 1e-6)
    assert GRPO()([rewards]) == [pytest.approx([a, -a])]
    unbiased = sqrt((1.5**2 + 3 * 0.5**2) / 3) * a
    assert GRPO(whiten=True)([rewards])[0] == pytest.approx(
        [1.5 * a / unbiased, -0.5 * a / unbiased], rel=1e-6
    )
    assert GRPO(whiten=True)([]) == []


def test_k3_has_the_gradient_of_superhfs_kl():
    """openfeedback/superhf a089812d, training.py: KL(pi_0 || pi) over the vocabulary, whose gradient pi -
    pi_0 is k3's on drawn tokens. Those of the best of many completions are not: the preset sums them all."""
    logits = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    logp0 = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    logp = logits.log_softmax(-1)
    exact = torch.autograd.grad((logp0.exp() * (logp0 - logp)).sum(), logits, retain_graph=True)[0]
    per_token = KL(estimator="k3", coef=1.0)(
        inputs([[v] for v in logp.tolist()], ref_logp=[[v] for v in logp0.tolist()], grad=True)
    )
    x = inputs([[v] for v in logp.tolist()], ref_logp=[[v] for v in logp0.tolist()])
    slope = gradient(KL(estimator="k3", coef=1.0)(x).loss, x)[:, 0]
    estimate = torch.autograd.grad((logp.detach().exp() * slope * logp).sum(), logits)[0]
    assert torch.allclose(estimate, exact) and torch.allclose(exact, logp.exp() - logp0.exp())
    assert (per_token.loss >= 0).all()


def test_dph_rl_keeps_one_answer_of_prompts_solved_four_times_of_four():
    """seamoke/DPH-RL 139a9b2, exact_correct_id.py: only the first four attempts count, and all of them must
    be right."""
    replay = DphRl(steps=0, attempts=4, rate=1.0, keep=1)
    rows = {"s": [group(1, name=str(i)).row for i in range(5)]}
    clock = base_run(rows=rows, settings=SimpleNamespace(prompts_per_step=2))
    replay.setup(clock)
    clock.phase_step = 2
    assert replay.first_steps() == 3  # 5 rows, 2 a step
    easy = group(1, 1, 1, 1, 0, name="0")
    assert replay([easy, group(1, 1, 1, 0, 1, 1, name="1")]) == []
    clock.phase_step = 3
    stored, fresh = replay([group(0, 1, name="0"), group(0, 1, name="1")])
    assert [r.source for r in stored] == ["base"] and [r.source for r in fresh] == ["policy"] * 2


def test_dph_rls_released_estimate_of_the_forward_kl():
    x = inputs([[log(0.5)]], sampled=[[0.0]])
    x.batch.rollouts[0].source = "base"
    assert DphRlFDivergence(divergence="forward_kl_k3")(x).loss.item() == pytest.approx(0.5 - 1 - log(0.5))
