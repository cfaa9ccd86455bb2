"""Critics: the value head and the value model learn what they are trained on, and their state survives a
restart."""

from __future__ import annotations

from math import log
from types import SimpleNamespace

import pytest
import torch
from make import run
from run_kit import last_step
from tiny import steps, text_run

from vlrl.methods.core.critic import (
    CRITIC_WEIGHT,
    OUTCOME_CRITIC,
    OUTCOME_CRITIC_MODEL,
    RETURNS,
    VALUE_CRITIC,
    VALUE_CRITIC_MODEL,
    Critic,
    CriticModel,
    value_head,
    value_model,
)
from vlrl.plugins.registry import ConfigError
from vlrl.types import Group, Prompt, Rollout, Row


def test_the_critic_learns_the_return():
    made = text_run(
        ["methods/ppo"], ["callbacks.critic.lr=1e-2", "callbacks.critic.epochs=40", "num_minibatches=1"]
    )
    (metrics,) = steps(made, 1)
    targets = [t for g in last_step(made).groups for r in g for t in RETURNS[r]]
    at_zero = 0.5 * sum(t * t for t in targets) / len(targets)  # the head starts at 0 everywhere
    assert metrics["critic/loss"] < 0.9 * at_zero and all(
        len(RETURNS[r]) == len(r) for g in last_step(made).groups for r in g
    )


@pytest.mark.parametrize(("preset", "expected"), [("open_reasoner_zero", 0.0), ("oreal", log(2))])
def test_a_critic_model_learns_and_its_state_survives(preset, expected):
    made, other = (
        text_run([f"methods/{preset}"], ["callbacks.critic.updates=1", "group_filters=null"])
        for _ in range(2)
    )
    (metrics,) = steps(made, 1)
    critic, callback = value_model(made), made.callbacks["critic"]
    kept = [Group(g.prompt, [r for r in g if r.loss_mask is None]) for g in last_step(made).groups]
    before = metrics["critic/loss"]
    assert expected == 0.0 or before == pytest.approx(expected)  # logits of 0
    made.learning_rate = 1e-3
    made.groups = kept
    for _ in range(12):
        after = callback(made, [])["loss"]
    total, items, _ = callback.loss(critic, made.policy, made.batch(kept))
    assert after[0] / after[1] < 0.9 * before and float(total.detach()) / items < 0.9 * before
    assert any(
        (a != b).any() for a, b in zip(critic.model.parameters(), made.policy.model.parameters())
    )  # the copy moved, apart from the policy
    other.callbacks["critic"].load_state_dict(callback.state_dict())
    for a, b in zip(critic.parameters(), value_model(other).parameters()):
        assert torch.equal(a, b)


def test_a_critic_model_takes_an_update_in_pieces():
    weights = []
    for micro_tokens in (1, 16384):
        made = text_run(
            ["methods/open_reasoner_zero"],
            [
                "callbacks.critic.updates=1",
                "group_filters=null",
                f"micro_batch_tokens={micro_tokens}",
                "optimizer.lr=1e-2",
            ],
        )
        steps(made, 2)
        weights.append(torch.cat([p.detach().flatten() for p in value_model(made).head.parameters()]))
    assert weights[0].abs().max() > 1e-4 and torch.allclose(*weights, atol=1e-5)


@pytest.mark.parametrize(("updates", "epochs"), [(1, 3), (2, 2)])
def test_a_critic_model_passes_over_its_rollouts_in_epochs(updates, epochs):
    made = text_run(
        ["methods/open_reasoner_zero"],
        [
            f"callbacks.critic.updates={updates}",
            f"callbacks.critic.epochs={epochs}",
            "group_filters=null",
        ],
    )
    steps(made, 1)
    taken = {int(state["step"]) for state in made.callbacks["critic"].state.optimizer.state.values()}
    assert taken == {updates * epochs}


def test_a_critic_model_has_an_optimizer_of_its_own():
    fields = ["betas=[0.5,0.6]", "weight_decay=0.25", "max_grad_norm=1e-3"]
    made = text_run(
        ["methods/open_reasoner_zero"],
        ["group_filters=null", *(f"callbacks.critic.{field}" for field in fields)],
    )
    steps(made, 1)
    (group,) = made.callbacks["critic"].state.optimizer.param_groups
    assert group["betas"] == (0.5, 0.6) and group["weight_decay"] == 0.25
    gradients = [p.grad.flatten() for p in value_model(made).parameters()]
    assert torch.cat(gradients).norm() == pytest.approx(1e-3, rel=1e-3)


def test_a_critic_models_norm_of_0_clips_nothing():
    heads = []
    for norm in (0, 1e9):
        fields = ["group_filters=null", f"callbacks.critic.max_grad_norm={norm}", "optimizer.lr=1e-2"]
        made = text_run(["methods/open_reasoner_zero"], fields)
        steps(made, 1)
        heads.append(value_model(made).head.weight.detach())
    assert heads[0].any() and torch.equal(*heads)


def test_a_critic_models_coefficient_scales_its_gradient():
    norms = []
    for coef in (1.0, 0.1):
        fields = ["updates=1", f"coef={coef}", "max_grad_norm=1e4"]
        made = text_run(
            ["methods/open_reasoner_zero"],
            ["group_filters=null", *(f"callbacks.critic.{field}" for field in fields)],
        )
        steps(made, 1)
        norms.append(float(torch.cat([p.grad.flatten() for p in value_model(made).parameters()]).norm()))
    assert norms[0] > 0.02 and norms[1] == pytest.approx(norms[0] / 10, rel=1e-4)


def test_primes_process_model_has_no_decay_beside_the_policys():
    """PRIME-RL/PRIME @ 18ad596f, verl/trainer/config/ppo_trainer.yaml:154, fsdp_workers.py:928-931."""
    made = text_run(["methods/prime"])
    (group,) = made.callbacks["prime"].state.optimizer.param_groups
    assert (group["weight_decay"], made.settings.optimizer.weight_decay) == (0.0, 0.01)


@pytest.mark.parametrize("anew", [False, True])
def test_a_phase_begins_with_the_critic_of_the_last_or_a_new_one(anew):
    fields = ["group_filters=null", "phases={a: {steps: 1}, b: {steps: 1}}", f"callbacks.critic.anew={anew}"]
    made = text_run(["methods/open_reasoner_zero"], fields)
    steps(made, 1)
    assert value_model(made).head.weight.any()
    made.enter(1)
    assert value_model(made).head.weight.any() != anew
    if anew:
        pairs = zip(value_model(made).model.parameters(), made.policy.model.parameters(), strict=True)
        assert all(torch.equal(mine, policys) for mine, policys in pairs)


def test_critic_state_survives():
    made = text_run(["methods/ppo"])
    steps(made, 1)
    state = made.callbacks["critic"].state_dict()
    other = text_run(["methods/ppo"])
    other.callbacks["critic"].load_state_dict(state)
    for a, b in zip(value_head(made).parameters(), value_head(other).parameters()):
        assert torch.equal(a, b)


@pytest.mark.parametrize("critic", [Critic(), CriticModel()], ids=lambda critic: critic.name)
def test_a_critic_without_a_reader_is_refused(critic):
    with pytest.raises(ConfigError, match=rf"{critic.name}' trains a \w+ that nothing reads"):
        critic.check(run(aux_tensors={}))


def test_a_head_with_another_objective_than_its_reader_is_refused():
    with pytest.raises(
        ConfigError, match="objective 'outcome' trains what the aux tensor 'token_score' reads"
    ):
        Critic(objective="outcome").check(run(aux_tensors={"value": object()}))


def test_the_objective_is_what_a_critic_provides():
    assert Critic().provides == (VALUE_CRITIC,) and Critic().requires == (RETURNS,)
    assert (
        Critic(objective="outcome").provides == (OUTCOME_CRITIC,)
        and Critic(objective="outcome").requires == ()
    )
    assert CriticModel().provides == (VALUE_CRITIC_MODEL,) and CriticModel().requires == (RETURNS,)
    assert (
        CriticModel(objective="outcome").provides == (OUTCOME_CRITIC_MODEL,)
        and CriticModel(objective="outcome").requires == ()
    )


@pytest.mark.parametrize(
    ("mean", "weights", "expected"),
    [
        ("tokens", None, (3.0, 3)),  # 0.5 + 0.5, and 2
        ("sequences", None, (2.5, 2)),  # 0.5, and 2
        ("tokens", (0.0, 2.0), (4.0, 3)),
        ("sequences", (0.0, 2.0), (4.0, 2)),
        ("sequences", (2.0, 0.0), (1.0, 2)),
    ],
)
def test_the_mean_of_a_value_loss_by_hand(mean, weights, expected):
    """Values 1 1 and 2 (a second token is padding), targets of 0: 0.5 V^2."""
    prompt = Prompt(row=Row("a", "q", "1"), messages=())
    rollouts = [Rollout(prompt, [1] * n, signals={"model_value": [0.0] * n}) for n in (2, 1)]
    for place, rollout in enumerate(rollouts):
        RETURNS.set(rollout, [0.0] * len(rollout))
        if weights:
            CRITIC_WEIGHT.set(rollout, weights[place])
    mask = torch.tensor([[True, True], [True, False]])
    batch = SimpleNamespace(loss_mask_BT=mask, mask_BT=mask, rollouts=rollouts)
    model = SimpleNamespace(values=lambda policy, batch: torch.tensor([[1.0, 1.0], [2.0, 9.0]]))
    total, number, _ = CriticModel(mean=mean).loss(model, None, batch)
    assert (total.item(), number) == pytest.approx(expected)
