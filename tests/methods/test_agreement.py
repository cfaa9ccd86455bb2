"""The package against a second implementation, on random ragged groups, within 1e-6."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from make import group, inputs

from vlrl import functional
from vlrl.methods.core.advantage import GRPO, RLOO
from vlrl.methods.core.loss_aggregation import Constant, SequenceMean, TokenMean
from vlrl.methods.core.loss_term import KL
from vlrl.methods.core.policy_loss import PPOClip
from vlrl.methods.papers.dcpo import DcpoOnlyTokenMean
from vlrl.methods.papers.gdpo import GDPO
from vlrl.methods.papers.gpg import GPG
from vlrl.methods.papers.opo import OPO
from vlrl.methods.papers.pass_k_training import PassKTraining
from vlrl.methods.papers.remax import ReMax
from vlrl.trainer.step.objective import Objective
from vlrl.types import Denominators

SEEDS = range(12)


def ragged(seed, binary=False):
    """Groups of 2-7 rollouts of 1-9 tokens."""
    random = np.random.default_rng(seed)
    groups = []
    for g in range(4):
        n = int(random.integers(2, 8))
        rewards = random.integers(0, 2, n).astype(float) if binary else random.normal(size=n)
        groups.append(group(*rewards.tolist(), lengths=random.integers(1, 10, n).tolist(), name=f"g{g}"))
    return random, groups


def agree(ours, theirs):
    """Whether there is something to compare, and each row is within 1e-6 of the other's (else numpy says
    where not)."""
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    return len(ours) > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_baselines(seed):
    random, groups = ragged(seed)
    rewards = [g.rewards for g in groups]
    assert agree(GRPO(eps=1e-4)(groups), [reference.grpo(r, 1e-4) for r in rewards])
    assert agree(GRPO(eps=1e-6, unbiased=False)(groups), [reference.grpo(r, 1e-6, ddof=0) for r in rewards])
    assert agree(RLOO()(groups), [reference.rloo(r) for r in rewards])
    assert agree(OPO()(groups), [reference.opo(g.rewards, [len(r) for r in g]) for g in groups])
    greedy = random.normal(size=len(groups))
    for g, value in zip(groups, greedy):
        g.untrained = group(float(value), source=["greedy"]).rollouts
    assert agree(ReMax()(groups), [reference.remax(r, v) for r, v in zip(rewards, greedy)])


@pytest.mark.parametrize("seed", SEEDS)
def test_batch_wide_ones(seed):
    random, groups = ragged(seed, binary=True)
    assert agree(GPG()(groups), reference.gpg([g.rewards for g in groups]))
    tables = []
    for g in groups:
        table = random.normal(size=(len(g), 3))
        tables.append(table)
        for rollout, row in zip(g, table):
            rollout.rewards = dict(zip("abc", row.tolist()))
    weights = [1.0, 0.5, 2.0]
    assert agree(GDPO(weights=dict(zip("abc", weights)))(groups), reference.gdpo(tables, weights, 1e-6))


@pytest.mark.parametrize("seed", SEEDS)
def test_pass_at_k(seed):
    random = np.random.default_rng(seed)
    n = int(random.integers(3, 9))
    right = [True, False, *random.integers(0, 2, n - 2).astype(bool).tolist()]
    for k in range(1, sum(not r for r in right) + 1):
        (own,) = PassKTraining(k=k)([group(*[float(r) for r in right])])
        np.testing.assert_allclose(own, reference.pass_at_k(right, k), atol=1e-9)
    assert n >= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_gae(seed):
    random = np.random.default_rng(seed)
    n, gamma, lam = int(random.integers(1, 12)), float(random.random()), float(random.random())
    rewards, values = random.normal(size=n), random.normal(size=n)
    own, _ = functional.gae(torch.tensor(rewards)[None], torch.tensor(values)[None], gamma=gamma, lam=lam)
    assert agree(own.tolist(), [reference.gae(rewards, values, gamma, lam)])


REDUCES = {
    "token_mean": TokenMean(),
    "sequence_mean": SequenceMean(),
    "constant": Constant(length=7),
    "only_token_mean": DcpoOnlyTokenMean(),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("reduce", REDUCES)
def test_whole_losses(seed, reduce):
    """Clipped surrogate with dual clip, KL of each kind, every aggregation: through the objective, as
    training runs them."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 7, 5).tolist()
    logp, old, ref = (-2 + 0.6 * random.normal(size=(5, 6)) for _ in range(3))
    advantage = random.normal(size=5)
    low, high, dual, kind, coef = 0.2, 0.28, (0.0, 3.0)[seed % 2], ("k1", "k2", "k3")[seed % 3], 0.3
    x = inputs(
        logp.tolist(), old=old.tolist(), advantage=advantage.tolist(), lengths=lengths, ref_logp=ref.tolist()
    )
    objective = Objective(
        PPOClip(low, high, dual), REDUCES[reduce], {}, {"kl": KL(estimator=kind, coef=coef)}
    )
    loss, _ = objective(x, Denominators(float(sum(lengths)), 5.0, 1.0))
    rows = [
        [reference.ppo(logp[i, t], old[i, t], advantage[i], low, high, dual) for t in range(n)]
        for i, n in enumerate(lengths)
    ]
    kls = [[reference.kl(logp[i, t], ref[i, t], kind) for t in range(n)] for i, n in enumerate(lengths)]
    expected = reference.reduce(rows, reduce, 7) + coef * reference.reduce(kls, reduce, 7)
    assert loss.dtype == torch.float64 and abs(loss.item() - expected) < 1e-9
