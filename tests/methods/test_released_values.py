"""Values by hand of formulas that were read in the authors' code: each test names the repository and the file."""

from __future__ import annotations

from math import log, sqrt

import pytest
from make import group, inputs

from vlrl.methods.core.advantage import GRPO
from vlrl.methods.papers.entropy_mechanism import EntropyMechanismClipCov, EntropyMechanismKlCov, covariance


def test_covariance_over_the_micro_batch():
    """PRIME-RL/Entropy-Mechanism-of-RL 88505792, core_algos.py: the means are those of all tokens, here -2 and 0.5, not those of each group."""
    x = inputs([[-1.0, -3.0], [-2.0, -2.0]], advantage=[1.0, 0.0], group_of=[0, 1])
    assert covariance(x, "batch").tolist() == [[0.5, -0.5], [0.0, 0.0]]
    assert covariance(x, "group").abs().sum() == 0  # each group has one advantage


def test_kl_cov_ranks_all_tokens_of_the_micro_batch():
    """max(1, int(n share)) of all n = 4 tokens: one token, where ranking by group takes one of each group."""
    x = inputs([[log(0.5), -3.0], [-2.0, -4.0]], old=[[log(0.25), -3.0], [-2.0, -4.0]], advantage=[2.0, -2.0], group_of=[0, 1])
    out = EntropyMechanismKlCov(share=0.25, beta=3.0, scope="batch")(x)
    assert out.metrics["held_back"].tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert out.loss[0, 0].item() == pytest.approx(-2 * 2 + 3 * log(2))
    assert EntropyMechanismKlCov(share=0.25, scope="group")(x).metrics["held_back"].sum() == 2


def test_clip_cov_draws_from_all_tokens_of_the_micro_batch():
    x = inputs([[-0.1, -3.0], [-3.0, -0.1]], advantage=[3.0, -3.0], group_of=[0, 1])  # covariances: 4.35, -4.35 and 4.35, -4.35
    out = EntropyMechanismClipCov(share=1e-6, cov_low=1.0, cov_high=5.0, scope="batch")(x)
    held = out.metrics["held_back"]
    assert held.sum() == 1 and held[0, 1] == held[1, 1] == 0
    assert EntropyMechanismClipCov(share=0.5, cov_low=1.0, cov_high=5.0, scope="batch")(x).metrics["held_back"].tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_grpo_advantages_normalised_over_the_tokens_of_the_step():
    """inclusionAI/AReaL 4aef98d8, reward_norm by group and adv_norm by batch: +-a by group over 1 + 3 tokens, so mean -a / 2 and variance a^2."""
    rewards = group(1.0, 0.0, lengths=[1, 3])
    a = 0.5 / (sqrt(0.5) + 1e-6)
    assert GRPO()([rewards]) == [pytest.approx([a, -a])]
    unbiased = sqrt((1.5**2 + 3 * 0.5**2) / 3) * a
    assert GRPO(whiten=True)([rewards])[0] == pytest.approx([1.5 * a / unbiased, -0.5 * a / unbiased], rel=1e-6)
    assert GRPO(whiten=True)([]) == []
