"""Classics of the core, in whole runs and by hand: weights over the step, filters, KL-Cov's count, BNPO's
variance, KLs and their controllers."""

from __future__ import annotations

import math

import pytest
import torch
from make import group, inputs, run
from run_kit import last_step
from tiny import steps, text_run

from vlrl.methods.core.loss_term import NLL
from vlrl.methods.core.token_weight import TIS
from vlrl.methods.papers.bnpo import BNPO
from vlrl.methods.papers.entropy_mechanism import EntropyMechanismKlCov, top_tokens
from vlrl.plugins.registry import ConfigError


def prepared(level, **fields):
    """Two rollouts of the policy and an expert's; log ratios 0.5, -0.5 (and a masked one) and 0.25."""
    made = group(
        1,
        0,
        1,
        lengths=[3, 1, 2],
        source=["policy", "policy", "expert"],
        loss_mask=[[True, False, True], None, None],
    )
    rows = (([0.5, 9.0, -0.5], [0.0, 0.0, 0.0]), ([0.25], [0.0]), ([1.0, 1.0], []))
    for rollout, (old, sampled) in zip(made, rows):
        rollout.signals["old_logp"], rollout.logp = old, sampled
    weight = TIS(level=level, normalise=True, **fields)
    weight.setup(run())
    weight.prepare([made])
    return weight, made


def test_normalised_importance_weights_have_mean_one_over_the_step():
    weight, _ = prepared("token", cap=1.5)
    ratios = [1.5, math.exp(-0.5), math.exp(0.25)]
    assert weight.needs == ("old_logp",) and weight.state.mean == pytest.approx(sum(ratios) / 3)
    assert prepared("sequence", cap=0.0)[0].state.mean == pytest.approx((1.0 + math.exp(0.25)) / 2)
    x = inputs([[0.5, -0.5], [0.25, 0.0]], sampled=[[0.0, 0.0], [0.0, 0.0]], lengths=[2, 1])
    for rollout in x.batch.rollouts:
        rollout.logp = [0.0]
    x.batch.rollouts[1].source = "expert"
    out = weight(x)
    assert out[0].tolist() == pytest.approx(
        [1.5 / weight.state.mean, math.exp(-0.5) / weight.state.mean]
    ) and out[1].tolist() == [1.0, 1.0]


def test_normalised_importance_weights_do_not_depend_on_the_split():
    """In a run: micro-batches of any size and one more minibatch see the same mean; without normalising
    nothing is prepared."""
    overrides = ["token_weights={behaviour: {name: tis, normalise: true}}", "optimizer.lr=1e-2"]
    logs = [
        steps(text_run(["methods/grpo"], [*overrides, f"micro_batch_tokens={tokens}"]), 2)
        for tokens in (1, 16384)
    ]
    for one, whole in zip(*logs):
        assert one["loss/policy"] == pytest.approx(whole["loss/policy"], abs=1e-6) and one[
            "grad_norm"
        ] == pytest.approx(whole["grad_norm"], rel=1e-4)
    assert TIS().needs == () and TIS().state.mean == 1.0


def test_overlong_filtering_in_a_run():
    """Truncated completions carry no gradient, and no share of the denominator."""
    short = ["sampling.max_tokens=2", "optimizer.lr=1e-3"]
    plain = steps(text_run(["methods/dr_grpo"], short), 1)[0]
    filtered = steps(
        text_run(["methods/dr_grpo"], [*short, "reward_shaping={overlong: {name: overlong_filter}}"]), 1
    )[0]
    assert plain["truncated"] == filtered["truncated"] > 0
    assert (
        filtered["overlong_filter/masked"] == pytest.approx(filtered["truncated"])
        and filtered["tokens"] < plain["tokens"]
    )
    assert filtered["length/mean"] == plain["length/mean"]  # the completions are as long as before


def test_the_paper_s_reinforce_pp_in_a_run():
    """The KL is a reward of every token before the normalisation: with a large coefficient the tokens of a
    rollout have different advantages."""
    made = text_run(
        ["methods/reinforce_pp"], ["reward_shaping.kl.beta=5.0", "optimizer.lr=3e-2", "num_minibatches=1"]
    )
    steps(made, 2)
    flat = [
        a
        for g in last_step(made).groups
        for r in g
        for a, trained in zip(r.advantages, r.trained_mask)
        if trained
    ]
    assert sum(flat) / len(flat) == pytest.approx(0.0, abs=1e-4) and torch.tensor(
        flat
    ).std().item() == pytest.approx(1.0, abs=1e-4)
    assert any(len(set(r.advantages)) > 1 for g in last_step(made).groups for r in g)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["reward_shaping=null"], r"requires 'token_rewards'.*kl_token_reward"),
        (
            ["advantage.token_rewards=false", "token_credit={name: uniform}"],
            r"requires 'reads_token_rewards'.*token_rewards: true",
        ),
        (
            [
                "advantage.token_rewards=false",
                "advantage.gamma=0.9",
                "reward_shaping=null",
                "token_credit={name: uniform}",
            ],
            r"writes advantages per token",
        ),
    ],
)
def test_rewards_per_token_need_a_writer_a_reader_and_a_credit(overrides, message):
    with pytest.raises(ConfigError, match=message):
        text_run(["methods/reinforce_pp"], overrides)


def test_an_adaptive_coefficient_moves_in_a_run():
    kl = "reward_shaping={kl: {name: kl_in_reward, beta: 0.1, target: 1e-6, horizon: 100}}"
    log = steps(text_run(["methods/rloo"], [kl, "optimizer.lr=3e-2"]), 3)
    betas = [metrics["kl_reward/beta"] for metrics in log]
    assert (
        log[0]["kl_reward/kl"] == pytest.approx(0.0, abs=1e-5) and betas[0] < 0.1
    )  # below the target, the coefficient falls
    assert log[2]["kl_reward/kl"] != 0.0 and len(set(betas)) == 3


def test_kl_cov_takes_as_many_tokens_as_the_release():
    """max(1, int(n share)), as compute_policy_loss_kl_cov does: 1 of 9 tokens at a fifth, not the 2 of a
    ceiling; ties do not add to it."""
    values, mask, group_B = (
        torch.tensor([[5.0, 1.0, 4.0], [4.0, 3.0, 2.0], [0.0, 0.0, 0.0]]),
        torch.ones(3, 3),
        torch.tensor([0, 0, 0]),
    )
    for share, count in ((0.2, 1), (0.25, 2), (0.01, 1), (1.0, 9)):
        assert top_tokens(values, mask, group_B, share).sum().item() == count
    assert top_tokens(values, mask, group_B, 0.25).nonzero().tolist() == [
        [0, 0],
        [0, 2],
    ]  # of the two values of 4 the earlier
    mask[0, 0] = 0
    assert top_tokens(values, mask, group_B, 0.2).nonzero().tolist() == [[0, 2]]


def test_kl_cov_penalises_exactly_these_tokens():
    x = inputs(
        [[-0.1, -2.0, -1.0], [-3.0, -0.2, -1.0]],
        old=[[-0.2, -1.0, -1.5], [-2.0, -0.3, -1.2]],
        advantage=[1.0, -1.0],
    )
    out = EntropyMechanismKlCov(share=0.4, beta=2.0)(x)
    ratio = (x.logp_BT - x.old_logp_BT).detach().exp()
    drift = (x.logp_BT - x.old_logp_BT).detach().abs()
    covariance = (x.logp_BT - x.logp_BT.mean()).detach() * x.advantage_BT
    largest = torch.zeros(6, dtype=torch.bool)
    largest[covariance.flatten().argsort(descending=True)[:2]] = True
    assert torch.equal(out.metrics["held_back"].flatten().bool(), largest)
    assert torch.allclose(out.loss.detach(), -ratio * x.advantage_BT + 2 * drift * largest.view(2, 3))


def test_bnpo_fits_the_unbiased_variance():
    """Pass rates 0.25, 0.5 and 0.75: m = 0.5, v = 0.0625 (not 0.0417), k = 3, alpha = beta = 1 + 1.5 / 3."""
    assert BNPO(max_reward=1.0).fit([0.25, 0.5, 0.75]) == pytest.approx((1.5, 1.5))
    groups = [group(*[1.0] * n, *[0.0] * (4 - n)) for n in (1, 2, 3)]
    rows = BNPO(max_reward=1.0)(groups)
    density = math.gamma(3) / math.gamma(1.5) ** 2 * math.sqrt(0.25 * 0.75)
    assert rows[0] == pytest.approx([0.75 / density, *[-0.25 / density] * 3])


def test_supervision_of_correct_rollouts_alone():
    made = group(0.5, 1.0, correct=[False, True])
    x = inputs([[-1.0, -2.0], [-3.0, -4.0]], groups=[made])
    assert NLL(correct=True)(x).loss.tolist() == [[0.0, 0.0], [3.0, 4.0]]


@pytest.mark.parametrize("preset", ["clip_higher", "dual_clip", "clip_cov", "kl_cov", "spuriousreward_clip"])
def test_a_preset_that_studies_the_clip_refuses_one_update_per_batch(preset):
    with pytest.raises(
        ConfigError,
        match=(
            r"acts on the ratio .* which is 1 with ppo_epochs: 1 and num_minibatches: 1; set one of them "
            r"above 1"
        ),
    ):
        text_run([f"methods/{preset}"], ["num_minibatches=1"])
    text_run([f"methods/{preset}"], ["num_minibatches=1", "ppo_epochs=2"]).close()


def test_dppo_holds_tokens_in_a_run():
    """Several updates with a large learning rate move probabilities beyond a small threshold; a threshold of
    1 holds nothing."""
    common = ["num_minibatches=2", "ppo_epochs=2", "optimizer.lr=3e-2"]
    tight, loose = (
        steps(text_run(["methods/grpo"], [*common, f"policy_loss={{name: dppo, low: {t}, high: {t}}}"]), 2)
        for t in (1e-4, 1.0)
    )
    assert tight[-1]["clip_fraction"] > 0 == loose[-1]["clip_fraction"] and math.isfinite(tight[-1]["ppo_kl"])
    with pytest.raises(ConfigError, match="'dppo' acts on the ratio"):
        text_run(["methods/grpo"], ["policy_loss={name: dppo}"])
