"""What every plug-in of a stage must keep, whatever it computes: one table per stage, over all registered names."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import pytest
import torch
from make import group, inputs, run

from vlrl import stages as S
from vlrl.registry import ConfigError, build, names
from vlrl.stages import Denominators

LENGTHS, GROUPS = [5, 1, 3, 4, 2, 5], [0, 0, 0, 1, 1, 1]
REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
TOTALS = Denominators(tokens=float(sum(LENGTHS)), sequences=6.0, groups=2.0)
# signal where all rewards of a group are equal: no or a batch-wide baseline, the past, a critic, confidence (see their docstrings)
SIGNAL_WITHOUT_CONTRAST = {"nsr", "reinforce", "reinforce_pp", "sigma_filter", "gae", "remax", "progrpo", "spae", "pure"}


def make(stage, name, **fields):
    """The plug-in with its defaults, or a skip where it cannot have any."""
    try:
        return build(stage, {"name": name, **fields})
    except ConfigError as error:
        if "needs a value" in str(error):
            pytest.skip(str(error))
        raise


def random_inputs(needs=(), seed=0, rows=slice(None), width=5, advantage=True):
    """Ragged, two groups, off-policy; `rows` takes a part of it, a larger `width` adds garbage as padding."""
    draw = torch.Generator().manual_seed(seed)

    def noise(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    logp, old, scale = -1 + 0.3 * noise(6, 5), -1 + 0.3 * noise(6, 5), noise(6)
    extra = {
        name: noise(6, 5, 3).sort(-1, descending=True).values - 2 if "topk" in name else noise(6, 5).abs() - 2.0 * ("logp" in name)
        for name in sorted(needs)
    }
    pad = torch.full((6, width - 5), -7.0, dtype=torch.float64)

    def part(value_BT):
        wide = torch.cat([value_BT, pad if value_BT.ndim == 2 else pad[..., None].expand(-1, -1, value_BT.shape[-1])], 1)[rows]
        return wide.tolist()

    group_of = torch.tensor(GROUPS)[rows]
    scale = scale[rows] if advantage else 0.0 * scale[rows]
    x = inputs(
        part(logp),
        old=part(old),
        sampled=part(old),
        advantage=scale.tolist(),
        lengths=LENGTHS[rows],
        reward=REWARDS[rows],
        group_of=(group_of - group_of.min()).tolist(),
        **{k: part(v) for k, v in extra.items()},
    )
    for tensor in x.aux_tensors.values():
        tensor.requires_grad_()
    return x


def total(plugin, x, reduce=None):
    """The loss as the objective adds it up, and its gradient."""
    out = plugin(x)
    loss = out.loss.sum() / TOTALS.sequences if out.loss.ndim == 1 else torch.where(x.mask_BT > 0, out.loss, 0.0).sum() / TOTALS.tokens
    (grad,) = torch.autograd.grad(loss, x.logp_BT, allow_unused=True)
    return loss.detach(), torch.zeros_like(x.logp_BT) if grad is None else grad, out


LOSSES = [(stage, name) for stage in (S.PolicyLoss, S.LossTerm) for name in names(stage)]


@pytest.mark.parametrize(("stage", "name"), LOSSES, ids=lambda v: v if isinstance(v, str) else v.kind)
def test_losses_are_finite_and_ignore_padding(stage, name):
    plugin = make(stage, name)
    loss, grad, out = total(plugin, random_inputs(plugin.needs))
    assert torch.isfinite(loss) and torch.isfinite(grad).all() and (grad[random_inputs().mask_BT == 0] == 0).all()
    assert not any(value.requires_grad for value in out.metrics.values() if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf)
    again = make(stage, name)
    wide_loss, wide_grad, _ = total(again, random_inputs(plugin.needs, width=8))
    assert torch.allclose(loss, wide_loss, atol=1e-10) and torch.allclose(grad, wide_grad[:, :5], atol=1e-10)


@pytest.mark.parametrize(("stage", "name"), LOSSES, ids=lambda v: v if isinstance(v, str) else v.kind)
def test_losses_add_up_over_micro_batches(stage, name):
    plugin = make(stage, name)
    whole, grad, _ = total(plugin, random_inputs(plugin.needs))
    halves = [total(make(stage, name), random_inputs(plugin.needs, rows=rows)) for rows in (slice(0, 3), slice(3, 6))]
    assert torch.allclose(whole, halves[0][0] + halves[1][0], atol=1e-10)
    assert torch.allclose(grad, torch.cat([halves[0][1], halves[1][1]]), atol=1e-10)


@pytest.mark.parametrize(("stage", "name"), LOSSES, ids=lambda v: v if isinstance(v, str) else v.kind)
def test_losses_read_what_they_declare(stage, name):
    plugin = make(stage, name)
    if not plugin.needs:
        assert total(plugin, random_inputs(()))[0].isfinite()
        return
    with pytest.raises(KeyError, match="declare it in `needs`"):
        plugin(random_inputs(()))


@pytest.mark.parametrize("name", names(S.PolicyLoss))
def test_no_advantage_means_no_gradient(name):
    surrogate = make(S.PolicyLoss, name)
    if surrogate.zero_without_advantage:
        x = random_inputs(surrogate.needs, advantage=False)
        x.old_logp_BT = x.logp_BT.detach().clone()
        x.reward_B = torch.ones_like(x.reward_B)
        for rollout in x.batch.rollouts:
            rollout.outcome, rollout.correct = 1.0, True
        assert total(surrogate, x)[1].abs().max() == 0


@pytest.mark.parametrize("name", names(S.TokenWeight))
def test_weights_are_factors(name):
    weight = make(S.TokenWeight, name)
    x = random_inputs(weight.needs)
    value = weight(x)
    assert value.shape in ((6, 5), (6, 1)) and torch.isfinite(value).all() and (value >= 0).all()
    parts = [make(S.TokenWeight, name)(random_inputs(weight.needs, rows=rows)) for rows in (slice(0, 3), slice(3, 6))]
    assert torch.allclose(value, torch.cat(parts))


@pytest.mark.parametrize("name", names(S.LossAggregation))
def test_reductions_do_not_depend_on_the_split(name):
    reduce = make(S.LossAggregation, name)
    reduce.setup(run())
    weights = reduce.weights(random_inputs(reduce.needs), TOTALS)
    assert weights.shape in ((6, 5), (6, 1)) and (weights > 0).all()
    parts = [reduce.weights(random_inputs(reduce.needs, rows=rows), TOTALS) for rows in (slice(0, 3), slice(3, 6))]
    assert torch.allclose(weights, torch.cat(parts))


def scored(*rewards, name="q", seed=0):
    """A group whose rollouts have every signal that an advantage or credit may read."""
    draw = random.Random(f"{name}{seed}")
    g = group(*rewards, lengths=[draw.randint(1, 6) for _ in rewards], name=name, raw={"accuracy": list(rewards)})
    for rollout in g:
        n = len(rollout)
        rollout.logp = [-draw.random() for _ in range(n)]
        numbers = ("entropy", "value", "token_score", "progrpo.prompt_confidence", "old_logp", "ref_logp", "vogue.clean_logp")
        rollout.signals = {key: [(-1 if "logp" in key else 1) * draw.random() for _ in range(n)] for key in numbers}
        rollout.signals["hidden"] = [[draw.gauss(0, 1) for _ in range(4)] for _ in range(n)]
        rollout.info["steps"] = [(t, draw.random()) for t in range(2, n, 2)]
    g.untrained = [type(rollout)(g.prompt, [1], source="greedy", trained=False)]
    return g


@pytest.mark.parametrize("name", names(S.AdvantageEstimator))
def test_advantages(name):
    fields = {"max_reward": 1.0} if name == "bnpo" else {}
    advantage = make(S.AdvantageEstimator, name, **fields)
    groups = [scored(1, 0, 0, name="a"), scored(1, 1, 0, 1, name="b"), scored(0.5, 0.5, name="c")]
    advantage.prepare(groups)
    values = advantage(groups)
    assert [len(row) for row in values] == [3, 4, 2] and all(abs(a) < 1e6 for row in values for a in row)
    if name not in SIGNAL_WITHOUT_CONTRAST:
        assert values[2] == [0.0, 0.0]
    if not advantage.state_dict():
        backwards = make(S.AdvantageEstimator, name, **fields)(groups[::-1])[::-1]
        assert [a for row in backwards for a in row] == pytest.approx([a for row in values for a in row], abs=1e-9)


@pytest.mark.parametrize("name", names(S.TokenCredit))
def test_credits(name):
    credit = make(S.TokenCredit, name)
    if name == "lare":
        credit.setup(run(policy=SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)))))
    g = scored(1, 0, 0)
    values = credit(g, [0.5, -0.25, -0.25])
    assert [len(row) for row in values] == [len(rollout) for rollout in g]
    assert all(isinstance(a, (int, float)) and abs(a) < 1e6 for row in values for a in row)


STATEFUL = [
    (stage, name)
    for stage in (
        S.AdvantageEstimator,
        S.TokenCredit,
        S.PolicyLoss,
        S.LossTerm,
        S.TokenWeight,
        S.LossAggregation,
        S.RewardShaping,
        S.GroupFilter,
        S.ReplayBuffer,
    )
    for name in names(stage)
]


@pytest.mark.parametrize(("stage", "name"), STATEFUL, ids=lambda v: v if isinstance(v, str) else v.kind)
def test_state_survives(stage, name):
    plugin = make(stage, name)
    state = plugin.state_dict()
    again = make(stage, name)
    again.load_state_dict(json.loads(json.dumps(state)))
    assert again.state_dict() == state and again == plugin
