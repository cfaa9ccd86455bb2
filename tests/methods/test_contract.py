"""What every plug-in of a stage must satisfy, whatever it computes: one test per rule, over all registered
names."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace

import pytest
import torch
from make import group, inputs, run

from vlrl.beside.process import STEP_VERDICTS
from vlrl.methods.common.step_scores import STEP_SCORES
from vlrl.methods.core.reward_shaping import TOKEN_REWARDS
from vlrl.plugins import stages as S
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.registry import build, shipped
from vlrl.types import Denominators, Row

LENGTHS, GROUPS = [5, 1, 3, 4, 2, 5], [0, 0, 0, 1, 1, 1]
REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
DENOMINATORS = Denominators(tokens=float(sum(LENGTHS)), sequences=6.0, groups=2.0)
# signal where all rewards of a group are equal: no or a batch-wide baseline, the past, a critic, confidence
# (see their docstrings)
SIGNAL_WITHOUT_CONTRAST = {
    "nsr",
    "reinforce",
    "reinforce_pp",
    "r1_reward.sigma_filter",
    "gae",
    "gtr.advantage",
    "remax",
    "progrpo",
    "spae",
    "pure",
    "prime",
    "writing_zero",
}
SIGNAL_WITHOUT_CONTRAST |= {
    "agentrl.task_advantage",
    "absolute_zero.advantage",
}  # baselines over all groups of a task
SIGNAL_WITHOUT_CONTRAST |= {
    "b_coder",
    "orcust",
    "rl_tango.mixed",
    "rlfr.returns",
}  # a critic, verdicts or rewards of steps and tokens
REQUIRED_FIELDS = {  # of plug-ins that have no default for them
    **{source: {"path": "nowhere"} for source in ("files", "folder", "hub", "webdataset")},
    **{wrapper: {"of": {"name": "exact"}} for wrapper in ("flipped", "inverted", "noisy")},
    **{
        name: {"parts": {"a": {"name": "exact"}}}
        for name in ("calibrated", "gated", "lexicographic", "normalised_sum", "product", "weighted_sum")
    },
    "listed": {"ids": ["a"]},
    "take": {"count": 1},
    "tasks": {"keep": ["a"]},
    "openai": {"model": "a"},
    "own_model": {"policy": {"name": "text", "model": "a"}},
    "armed": {"slot": "a"},
    "laser": {"c": -23.0},
    "laser.self_rewarded": {"c": -23.0},
    "diver": {"diversity": "distinct_n"},
    "eval": {"suites": ["gsm8k"]},
    "records_in_memory": {"records": [{"question": "?", "answer": "a"}]},
    "rows_in_memory": {"rows": []},
    "gymnasium": {"id": "CartPole-v1"},
    "minigrid": {"id": "MiniGrid-Empty-5x5-v0"},
    "played_on_ray": {"of": {"name": "calculator"}},
    "action_share": {"actions": ["forward"]},
    "behavior_alignment_reward": {"slots": ["a"]},
    "verifiers": {"id": "a"},
    "browser": {"site": "desk"},
    "mcp": {"command": ["a"]},
    "recorded": {"path": "nowhere"},
    "tool_star.hierarchical_reward": {"answer": "a", "format": "b"},
}


def names(stage):
    """The shipped plug-ins of a stage: other tests of the process register their own."""
    return sorted(shipped(stage))


ALL = [(stage, name) for stage in S.STAGES.values() for name in names(stage)]


def label(value):
    return value if isinstance(value, str) else value.kind


def make(stage, name, **fields):
    """The plug-in with its defaults, and with values where it has none."""
    return build(stage, {"name": name, **REQUIRED_FIELDS.get(name, {}), **fields})


def random_inputs(needs=(), seed=0, rows=slice(None), width=5, advantage=True):
    """Ragged, two groups, off-policy; `rows` takes a part of it, a larger `width` adds garbage as padding."""
    draw = torch.Generator().manual_seed(seed)

    def noise(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    logp, old, scale = -1 + 0.3 * noise(6, 5), -1 + 0.3 * noise(6, 5), noise(6)
    extra = {
        name: noise(6, 5, 2)
        if name == "expert_load"
        else noise(6, 5, 3).sort(-1, descending=True).values - 2
        if "topk" in name
        else noise(6, 5).abs() - 2.0 * ("logp" in name)
        for name in sorted(needs)
    }
    pad = torch.full((6, width - 5), -7.0, dtype=torch.float64)

    def part(value_BT):
        wide = torch.cat(
            [value_BT, pad if value_BT.ndim == 2 else pad[..., None].expand(-1, -1, value_BT.shape[-1])], 1
        )[rows]
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


def total(plugin, x):
    """The loss as the objective adds it up, and its gradient."""
    out = plugin(x)
    loss = (
        out.loss.sum() / DENOMINATORS.sequences
        if out.loss.ndim == 1
        else torch.where(x.mask_BT > 0, out.loss, 0.0).sum() / DENOMINATORS.tokens
    )
    (grad,) = torch.autograd.grad(loss, x.logp_BT, allow_unused=True)
    return loss.detach(), torch.zeros_like(x.logp_BT) if grad is None else grad, out


LOSSES = [(stage, name) for stage in (S.PolicyLoss, S.LossTerm) for name in names(stage)]


@pytest.mark.sweep
@pytest.mark.parametrize(("stage", "name"), LOSSES, ids=label)
def test_losses_are_finite_and_ignore_padding(stage, name):
    plugin = make(stage, name)
    loss, grad, out = total(plugin, random_inputs(plugin.needs))
    assert (
        torch.isfinite(loss)
        and torch.isfinite(grad).all()
        and (grad[random_inputs().mask_BT == 0] == 0).all()
    )
    assert not any(
        value.requires_grad
        for value in out.metrics.values()
        if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
    )
    again = make(stage, name)
    wide_loss, wide_grad, _ = total(again, random_inputs(plugin.needs, width=8))
    assert torch.allclose(loss, wide_loss, atol=1e-10) and torch.allclose(grad, wide_grad[:, :5], atol=1e-10)


@pytest.mark.sweep
@pytest.mark.parametrize(("stage", "name"), LOSSES, ids=label)
def test_losses_add_up_over_micro_batches(stage, name):
    plugin = make(stage, name)
    whole, grad, _ = total(plugin, random_inputs(plugin.needs))
    halves = [
        total(make(stage, name), random_inputs(plugin.needs, rows=rows))
        for rows in (slice(0, 3), slice(3, 6))
    ]
    assert torch.allclose(whole, halves[0][0] + halves[1][0], atol=1e-10)
    assert torch.allclose(grad, torch.cat([halves[0][1], halves[1][1]]), atol=1e-10)


@pytest.mark.sweep
@pytest.mark.parametrize(("stage", "name"), LOSSES, ids=label)
def test_losses_read_what_they_declare(stage, name):
    plugin = make(stage, name)
    if not plugin.needs:
        assert total(plugin, random_inputs(()))[0].isfinite()
        return
    with pytest.raises(KeyError, match="declare it in `needs`"):
        plugin(random_inputs(()))


@pytest.mark.parametrize("name", names(S.PolicyLoss))
def test_no_advantage_means_no_gradient(name):
    loss = make(S.PolicyLoss, name)
    if loss.zero_without_advantage:
        x = random_inputs(loss.needs, advantage=False)
        x.old_logp_BT = x.logp_BT.detach().clone()
        x.reward_B = torch.ones_like(x.reward_B)
        for rollout in x.batch.rollouts:
            rollout.outcome, rollout.correct = 1.0, True
        assert total(loss, x)[1].abs().max() == 0


@pytest.mark.parametrize("name", names(S.TokenWeight))
def test_token_weights_are_factors(name):
    def attached():
        weight = make(S.TokenWeight, name)
        if (
            name == "gtr.thought_weight"
        ):  # it decodes the tokens; here the second one of a rollout ends its thought
            weight.setup(
                run(
                    policy=SimpleNamespace(
                        decode=lambda ids: "".join("</think>" if i == 11 else "a" for i in ids)
                    )
                )
            )
        return weight

    weight = attached()
    x = random_inputs(weight.needs)
    value = weight(x)
    assert value.shape in ((6, 5), (6, 1)) and torch.isfinite(value).all() and (value >= 0).all()
    parts = [attached()(random_inputs(weight.needs, rows=rows)) for rows in (slice(0, 3), slice(3, 6))]
    assert torch.allclose(value, torch.cat(parts))


@pytest.mark.parametrize("name", names(S.LossAggregation))
def test_aggregations_do_not_depend_on_the_split(name):
    aggregation = make(S.LossAggregation, name)
    aggregation.setup(run())
    weights = aggregation.weights(random_inputs(aggregation.needs), DENOMINATORS)
    assert weights.shape in ((6, 5), (6, 1)) and (weights > 0).all()
    parts = [
        aggregation.weights(random_inputs(aggregation.needs, rows=rows), DENOMINATORS)
        for rows in (slice(0, 3), slice(3, 6))
    ]
    assert torch.allclose(weights, torch.cat(parts))


def scored(*rewards, name="q", seed=0):
    """A group whose rollouts have every signal that an advantage or credit may read."""
    draw = random.Random(f"{name}{seed}")
    g = group(
        *rewards, lengths=[draw.randint(1, 6) for _ in rewards], name=name, raw={"accuracy": list(rewards)}
    )
    for rollout in g:
        n = len(rollout)
        rollout.logp = [-draw.random() for _ in range(n)]
        numbers = (
            "entropy",
            "value",
            "token_score",
            "progrpo.prompt_confidence",
            "old_logp",
            "ref_logp",
            "vogue.clean_logp",
            "prime.logp",
            "b_coder.old_lead",
            "b_coder.caution",
        )
        rollout.signals = {
            key: [(-1 if "logp" in key or "b_coder" in key else 1) * draw.random() for _ in range(n)]
            for key in numbers
        }
        rollout.signals["hidden"] = [[draw.gauss(0, 1) for _ in range(4)] for _ in range(n)]
        STEP_SCORES.set(rollout, [(t, draw.random()) for t in range(2, n, 2)])
        STEP_VERDICTS.set(rollout, [(5 * t, draw.random()) for t in range(2, n, 2)])  # in characters
        TOKEN_REWARDS.set(rollout, [draw.random() for _ in range(n)])
    g.untrained = [type(rollout)(g.prompt, [1], source="greedy", trained=False)]
    return g


def of_a_run(plugin):
    """The plug-in, with the run that it reads: its step and its tokenizer."""
    policy = SimpleNamespace(tokenizer=SimpleNamespace(decode=lambda ids: "word "))
    plugin.setup(run(phase_step=0, settings=SimpleNamespace(steps=4), policy=policy))
    return plugin


@pytest.mark.parametrize("name", names(S.AdvantageEstimator))
def test_advantages(name):
    fields = {"max_reward": 1.0} if name == "bnpo" else {}
    advantage = of_a_run(make(S.AdvantageEstimator, name, **fields))
    groups = [scored(1, 0, 0, name="a"), scored(1, 1, 0, 1, name="b"), scored(0.5, 0.5, name="c")]
    advantage.prepare(groups)
    values = advantage(groups)
    assert [len(row) for row in values] == [3, 4, 2] and all(abs(a) < 1e6 for row in values for a in row)
    if name not in SIGNAL_WITHOUT_CONTRAST:
        assert values[2] == [0.0, 0.0]
    if not advantage.state_dict():
        backwards = of_a_run(make(S.AdvantageEstimator, name, **fields))(groups[::-1])[::-1]
        assert [a for row in backwards for a in row] == pytest.approx(
            [a for row in values for a in row], abs=1e-9
        )


@pytest.mark.parametrize("name", names(S.TokenCredit))
def test_token_credits(name):
    credit = make(S.TokenCredit, name)
    if name == "lare":
        credit.setup(run(policy=SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)))))
    g = scored(1, 0, 0)
    values = credit(g, [0.5, -0.25, -0.25])
    assert [len(row) for row in values] == [len(rollout) for rollout in g]
    assert all(isinstance(a, (int, float)) and abs(a) < 1e6 for row in values for a in row)


@pytest.mark.sweep
@pytest.mark.parametrize(("stage", "name"), ALL, ids=label)
def test_a_plugin_is_its_frozen_config_and_an_explicit_state(stage, name):
    plugin = make(stage, name)
    assert type(plugin).__dataclass_params__.frozen and all(
        field.init for field in dataclasses.fields(plugin)
    )
    assert (
        type(plugin).state_dict is S.Stage.state_dict
        and type(plugin).load_state_dict is S.Stage.load_state_dict
    )
    assert not {"name", "kind", "home", "needs", "provides", "requires", "state", "run"} & {
        field.name for field in dataclasses.fields(plugin)
    }
    state = plugin.init_state()
    assert state is None or (
        isinstance(state, S.State) and dataclasses.is_dataclass(state) and state is not plugin.init_state()
    )


def plain(value):
    """A state without tensors: each tensor as (dtype, nested lists)."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.sweep
@pytest.mark.parametrize(("stage", "name"), ALL, ids=label)
def test_state_survives_a_checkpoint(stage, name, tmp_path):
    plugin = make(stage, name)
    state = plugin.state_dict()
    torch.save(state, tmp_path / "state")
    again = make(stage, name)
    again.load_state_dict(torch.load(tmp_path / "state", weights_only=True))  # plain values and tensors alone
    assert plain(again.state_dict()) == plain(state) and again == plugin


@pytest.mark.sweep
@pytest.mark.parametrize(("stage", "name"), ALL, ids=label)
def test_metrics_change_nothing(stage, name):
    plugin = make(stage, name)
    if stage is S.PromptSampler or name in ("evocot.own_steps", "recap"):  # their numbers are of the run
        rows = {source: [Row(source, "q", meta={"principle": source})] for source in ("a", "b")}
        parts = run(
            rows=rows, source_weights={}, seed=0, rewards={}, phase_step=0, settings=SimpleNamespace(steps=2)
        )
        plugin.setup(parts)
    before, first, second = plain(plugin.state_dict()), plugin.metrics(), plugin.metrics()
    assert first == second and plain(plugin.state_dict()) == before
    assert all(
        isinstance(number, float)
        for value in first.values()
        for number in (value if isinstance(value, tuple) else (value,))
    )


@pytest.mark.sweep
@pytest.mark.parametrize(("stage", "name"), ALL, ids=label)
def test_what_a_plugin_declares(stage, name):
    plugin = make(stage, name)
    assert all(isinstance(need, str) for need in plugin.needs) and not isinstance(plugin.needs, str)
    assert all(isinstance(capability, Capability) for capability in (*plugin.provides, *plugin.requires))
    for capability in plugin.requires:
        assert capability.hint, f"{capability.name!r} has no hint, and an error must say what provides it"


def test_a_name_is_one_capability():
    """Two modules may declare the same annotation (rewards do not import methods), but then it is the same
    one."""
    known = {}
    for stage, name in ALL:
        plugin = make(stage, name)
        for capability in (*plugin.provides, *plugin.requires):
            assert known.setdefault(capability.name, capability) == capability, name
