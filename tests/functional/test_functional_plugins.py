"""The plug-ins give what the functions give: every setting of a plug-in reaches its function."""

from types import SimpleNamespace

import pytest
import torch
from functional_kit import as_lists, groups, inputs

import vlrl.functional as F
from vlrl.methods.core.critic import RETURNS
from vlrl.plugins.registry import build
from vlrl.plugins.stages import (
    TOKEN_ADVANTAGES,
    AdvantageEstimator,
    AuxTensor,
    Denominators,
    LossAggregation,
    LossTerm,
    PolicyLoss,
    RewardShaping,
    TokenWeight,
)


def four(x):
    return x.logp_BT, x.old_logp_BT, x.advantage_BT, x.mask_BT


LOSSES = [
    (
        {"name": "ppo_clip", "low": 0.1, "high": 0.3, "dual_clip": 2.0},
        lambda x: F.ppo_clip_loss(*four(x), 0.1, 0.3, 2.0),
    ),
    ({"name": "ppo_clip"}, lambda x: F.ppo_clip_loss(*four(x))),
    ({"name": "gspo", "low": 0.1, "high": 0.2}, lambda x: F.gspo_loss(*four(x), 0.1, 0.2)),
    (
        {"name": "gspo", "low": 0.1, "high": 0.2, "token_level": True},
        lambda x: F.gspo_token_loss(*four(x), 0.1, 0.2),
    ),
    ({"name": "cispo", "low": 0.4, "high": 0.5}, lambda x: F.cispo_loss(*four(x), 0.4, 0.5)),
    ({"name": "gmpo", "low": 0.3, "high": 0.2}, lambda x: F.gmpo_loss(*four(x), 0.3, 0.2)),
    ({"name": "sapo", "positive": 1.5, "negative": 2.0}, lambda x: F.sapo_loss(*four(x), 1.5, 2.0)),
    (
        {"name": "vespo", "positive": [1.0, 2.0], "negative": [2.0, 1.5]},
        lambda x: F.vespo_loss(*four(x), (1.0, 2.0), (2.0, 1.5)),
    ),
    ({"name": "cpgd", "eps": 0.3}, lambda x: F.cpgd_loss(*four(x), 0.3)),
    ({"name": "kimi_k1_5", "tau": 0.4}, lambda x: F.mirror_descent_loss(*four(x), 0.4)),
    (
        {"name": "dppo", "low": 0.1, "high": 0.2, "cap": 2.0},
        lambda x: F.dppo_loss(*four(x), "tv", 0.1, 0.2, 2.0),
    ),
    ({"name": "dppo", "divergence": "kl", "cap": 0.0}, lambda x: F.dppo_loss(*four(x), "kl", cap=None)),
    ({"name": "policy_gradient"}, lambda x: F.reinforce_loss(x.logp_BT, x.advantage_BT, x.mask_BT)),
]


@pytest.mark.parametrize(
    ("config", "function"), LOSSES, ids=lambda v: v["name"] if isinstance(v, dict) else ""
)
def test_policy_losses(config, function):
    x = inputs()
    own, expected = build(PolicyLoss, config)(x), function(x)
    assert torch.equal(own.loss, expected.loss)
    assert all(torch.equal(own.metrics[name], value) for name, value in expected.metrics.items())


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs"])
@pytest.mark.parametrize("gradient", ["direct", "k2", "importance"])
def test_kl(kind, gradient):
    x = inputs()
    settings = {"gradient": gradient, "clamp_log": 0.7, "clamp_value": 0.3}
    own = build(LossTerm, {"name": "kl", "estimator": kind, **settings})(x)
    expected = F.kl_penalty(
        x.logp_BT, x["ref_logp"], x.mask_BT, old_logp_BT=x.old_logp_BT, kind=kind, **settings
    )
    assert torch.equal(own.loss, expected.loss) and torch.equal(own.metrics["kl"], expected.metrics["kl"])


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_importance_weights(level, mode):
    x = inputs()
    own = build(TokenWeight, {"name": "tis", "level": level, "mode": mode, "cap": 1.5, "floor": 0.4})(x)
    pair = x.old_logp_BT, x.sampled_logp_BT, x.mask_BT
    assert torch.equal(own, F.importance_weights(*pair, level=level, mode=mode, cap=1.5, floor=0.4))
    assert torch.equal(
        build(TokenWeight, {"name": "icepop", "low": 0.6, "high": 1.4})(x),
        F.icepop_weights(*pair, low=0.6, high=1.4),
    )


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("level", ["token", "sequence_sum", "sequence_mean", "sequence_max"])
def test_rejection(estimator, level):
    x = inputs()
    own = build(TokenWeight, {"name": "rejection", "estimator": estimator, "level": level, "limit": 0.2})(x)
    expected = F.rejection_mask(
        x.old_logp_BT, x.sampled_logp_BT, x.mask_BT, kind=estimator, level=level, limit=0.2
    )
    assert torch.equal(own, expected) and 0 < expected.mean() < 1


def test_off_policy_sequence_mask():
    x = inputs()
    own = build(TokenWeight, {"name": "off_policy_sequence_mask", "delta": 0.05})(x)
    expected = F.off_policy_sequence_mask(x.logp_BT, x.sampled_logp_BT, x.advantage_BT, x.mask_BT, delta=0.05)
    assert torch.equal(own, expected) and 0 < expected.mean() < 1


@pytest.mark.parametrize(
    "config",
    [{"name": "tis", "level": "sequence"}, {"name": "rejection"}, {"name": "off_policy_sequence_mask"}],
)
def test_weights_of_the_engine_leave_other_writers_alone(config):
    x = inputs()
    x.batch.rollouts[0].source = "expert"
    assert (build(TokenWeight, config)(x)[0] == 1).all()


AGGREGATIONS = [
    ({"name": "token_mean"}, "token_mean", {}),
    ({"name": "token_sum"}, "token_sum", {}),
    ({"name": "sequence_mean"}, "sequence_mean", {}),
    ({"name": "constant", "length": 11}, "constant", {"length": 11}),
    ({"name": "dcpo.only_token_mean"}, "sequence_mean_sum", {}),
]


@pytest.mark.parametrize(
    ("config", "mode", "settings"), AGGREGATIONS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_aggregations(config, mode, settings):
    x = inputs()
    own = build(LossAggregation, config).weights(x, Denominators(tokens=40.0, sequences=9.0, groups=3.0))
    assert torch.equal(own, F.aggregation_weights(x.mask_BT, mode, tokens=40.0, sequences=9.0, **settings))


def test_prompt_mean_is_the_token_mean_of_a_device_with_one_group():
    """TRL's bnpo: each device has a group; tokens 3 + 1 and 2, losses 1 each but 5 in the second group: (4 /
    4 + 10 / 2) / 2; a third group of the step lies in another micro-batch."""
    mask_BT = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    x = SimpleNamespace(mask_BT=mask_BT, group_B=torch.tensor([0, 0, 1]))
    loss_BT = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [5.0, 5.0, 0.0]])
    for count, expected in ((2.0, 3.0), (3.0, 2.0)):
        totals = Denominators(tokens=6.0, sequences=3.0, groups=count)
        weights = build(LossAggregation, {"name": "prompt_mean"}).weights(x, totals)
        assert (weights * loss_BT * mask_BT).sum().item() == pytest.approx(expected)


ADVANTAGES = [
    (
        {"name": "grpo", "eps": 0.1, "unbiased": False},
        lambda r, n, g: F.group_advantages(r, g, eps=0.1, unbiased=False),
    ),
    ({"name": "grpo", "scale": "batch"}, lambda r, n, g: F.group_advantages(r, g, scale="batch_std")),
    ({"name": "grpo", "scale": "none"}, lambda r, n, g: F.group_advantages(r, g, scale="none")),
    (
        {"name": "grpo", "baseline": "leave_one_out", "scale": "others"},
        lambda r, n, g: F.group_advantages(r, g, baseline="leave_one_out", scale="others_std"),
    ),
    (
        {"name": "grpo", "scale": "centred_batch"},
        lambda r, n, g: F.group_advantages(r, g, scale="centred_batch_std"),
    ),
    (
        {"name": "grpo", "baseline": "batch", "scale": "batch"},
        lambda r, n, g: F.group_advantages(r, g, baseline="batch_mean", scale="batch_std"),
    ),
    ({"name": "pass_at_k_max", "eps": 0.1}, lambda r, n, g: F.pass_at_k_max_advantages(r, g, eps=0.1)),
    (
        {"name": "pass_at_k_max", "scale": "none"},
        lambda r, n, g: F.pass_at_k_max_advantages(r, g, scale="none"),
    ),
    ({"name": "rloo"}, lambda r, n, g: F.rloo_advantages(r, g)),
    ({"name": "reinforce_pp", "eps": 0.1}, lambda r, n, g: F.reinforce_pp_advantages(r, n, eps=0.1)),
    ({"name": "reinforce_pp", "baseline": True}, lambda r, n, g: F.reinforce_pp_advantages(r, n, g)),
    ({"name": "maxrl", "eps": 0.1}, lambda r, n, g: F.maxrl_advantages(r, g, eps=0.1)),
    ({"name": "opo"}, lambda r, n, g: F.opo_advantages(r, n, g)),
    ({"name": "pass_k_training", "k": 2}, lambda r, n, g: F.pass_at_k_advantages((r > 0.5).double(), g, 2)),
]


@pytest.mark.parametrize(
    ("config", "function"), ADVANTAGES, ids=lambda v: v["name"] if isinstance(v, dict) else ""
)
def test_advantages(config, function):
    reward_B, length_B, group_B, some = groups()
    assert build(AdvantageEstimator, config)(some) == as_lists(function(reward_B, length_B, group_B), some)


def test_gdpo_reads_every_slot_that_scored_the_whole_group():
    _, _, group_B, some = groups()
    for rollout in some[1]:
        rollout.rewards.pop("b")
    rows = [
        [rollout.rewards["a"], rollout.rewards.get("b", float("nan"))] for group in some for rollout in group
    ]
    expected = F.gdpo_advantages(torch.tensor(rows, dtype=torch.float64), group_B, [0.5, 1.0])
    assert build(AdvantageEstimator, {"name": "gdpo", "weights": {"a": 0.5}})(some) == as_lists(
        expected, some
    )


def test_gae_and_its_targets():
    reward_B, length_B, _, some = groups()
    rollouts = [rollout for group in some for rollout in group]
    mask_BT = torch.arange(int(length_B.max())) < length_B[:, None]
    value_BT = torch.randn(mask_BT.shape, dtype=torch.float64)
    for rollout, values, n in zip(rollouts, value_BT.tolist(), length_B.tolist()):
        rollout.signals["value"] = values[:n]
    build(AdvantageEstimator, {"name": "gae", "gamma": 0.9, "lam": 0.8})(some)
    advantages, targets = F.gae(F.token_rewards(reward_B, mask_BT), value_BT, mask_BT, 0.9, 0.8)
    white = F.whiten(advantages, mask_BT)
    for b, (rollout, n) in enumerate(zip(rollouts, length_B.tolist())):
        assert TOKEN_ADVANTAGES[rollout] == white[b, :n].tolist()
        assert RETURNS[rollout] == targets[b, :n].tolist()


def test_lengths():
    reward_B, length_B, _, some = groups()
    shaped = build(RewardShaping, {"name": "soft_overlong", "limit": 6, "buffer": 4.0, "factor": 0.5})
    expected = reward_B + 0.5 * F.overlong_penalty(length_B, 6, 4.0)
    assert [shaped(group) for group in some] == as_lists(expected, some)


def test_entropy():
    logits = torch.randn(5, 11)
    assert torch.equal(
        build(AuxTensor, "entropy").from_logits(logits, torch.zeros(5)), F.entropy_from_logits(logits)
    )
