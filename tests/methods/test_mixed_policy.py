"""Demonstrations in a group: who is in it, what they earn and what their tokens weigh, by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from make import gradient, group, inputs
from run_kit import last_step
from tiny import steps, text_run, vision_run

from vlrl.methods.common.demonstrations import demonstrations
from vlrl.methods.core.policy_loss import PPOClip
from vlrl.methods.papers.luffy import Luffy, LuffyPolicyShaping
from vlrl.methods.papers.visurf import Visurf
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import AdvantageEstimator
from vlrl.trainer.views import StepView
from vlrl.types import Row

LOG = math.log


def mixed(p, old, source="expert", sampled=None, advantage=1.0, **fields):
    """The loss and its gradient of one rollout of one token with probability p."""
    g = group(1.0, lengths=[1], source=[source])
    x = inputs(
        [[LOG(p)]],
        old=[[LOG(old)]],
        sampled=[[LOG(sampled or old)]],
        advantage=[advantage],
        groups=[g],
        reward=[1.0],
    )
    out = LuffyPolicyShaping(**fields)(x)
    return out.loss.item(), gradient(out.loss, x).item()


@pytest.mark.parametrize(
    ("fields", "loss", "slope"),
    [
        ({}, -0.4 / 0.5, -0.4 * 0.1 / 0.25),  # p / (p + 0.1); d/dlog p = 0.1 p / (p + 0.1)^2
        ({"beta": 0.0}, -0.4, -0.4),
        (
            {"behaviour": "mixture", "beta": 0.0},
            -2 * 0.4 / (0.2 + 0.6),
            -1.0,
        ),  # p_old 0.2: the mixture's half is (0.2 + 1) / 2
        (
            {"behaviour": "mixture", "beta": 0.0, "explore": 0.5},
            -(0.6**0.5),
            -(0.6**0.5),
        ),  # the factor (1 - p)^0.5 has no gradient
        ({"behaviour": "recorded", "sampled": 0.8}, -0.5 / 0.6, -0.5 * 0.1 / 0.36),  # u = 0.4 / 0.8
        ({"advantage": -2.0}, 2 * 0.8, 2 * 0.16),
    ],
)
def test_tokens_of_others_by_hand(fields, loss, slope):
    assert mixed(0.4, 0.2, **fields) == pytest.approx((loss, slope), rel=1e-6)


def test_own_tokens_have_the_ratio_and_are_clipped_on_demand():
    assert mixed(0.4, 0.2, source="policy") == pytest.approx((-2.0, -2.0))
    assert mixed(0.4, 0.2, source="policy", clip=True) == pytest.approx((-1.2, 0.0))
    assert mixed(0.4, 0.2, source="expert", clip=True)[0] == pytest.approx(-0.8)  # never clipped
    x = inputs([[-1.0, -2.0], [-0.5, -0.1]], old=[[-1.5, -1.0], [-0.6, -0.1]], advantage=[1.0, -1.0])
    assert torch.equal(LuffyPolicyShaping(clip=True)(x).loss, PPOClip()(x).loss)


def test_a_certain_token_of_an_expert_teaches_rl_plus_nothing():
    assert mixed(1.0, 1.0, behaviour="mixture", beta=0.0, explore=0.5)[0] == 0.0


@pytest.mark.parametrize(
    ("row", "texts"),
    [
        (Row("a", "q", target="t"), ["t"]),
        (Row("a", "q", target="t", meta={"demonstrations": ["u", "", "v"]}), ["u", "v"]),
        (Row("a", "q"), []),
    ],
)
def test_where_demonstrations_come_from(row, texts):
    assert demonstrations(row) == texts


@pytest.mark.parametrize(
    ("words", "sources"),
    [
        ("", ["policy"] * 5 + ["expert"]),
        ("replace: false", ["policy"] * 6 + ["expert"]),
        ("per_prompt: 9", ["policy"] * 5 + ["expert"]),  # the row has but one
    ],
)
def test_groups_hold_their_demonstration(words, sources):
    run = text_run(
        ["methods/luffy"], [f"rollout={{name: luffy, {words}}}", "num_minibatches=1", "group_size=6"]
    )
    prompt = run.prompt_template(run.rows["arithmetic"][3])
    (found,) = run.rollout([prompt], [6], StepView.between_steps(run))
    (expert,) = [rollout for rollout in found if rollout.source == "expert"]
    assert (
        sorted(r.source for r in found) == sorted(sources)
        and expert.text == prompt.row.target
        and expert.logp == []
    )
    assert (
        expert.ids[-1] == run.policy.tokenizer.eos_token_id
        and run.policy.decode(expert.ids) == prompt.row.target
    )
    (alone,), (none,) = (
        run.rollout([prompt], [1], StepView.between_steps(run)),
        run.rollout([prompt], [0], StepView.between_steps(run)),
    )
    assert [r.source for r in alone][:1] == ["policy"] and len(none) == 0
    run.close()


def test_data_without_demonstrations_is_refused():
    run = SimpleNamespace(rows={"main": [Row("a", "q"), Row("b", "q")]})
    with pytest.raises(ConfigError, match="target"):
        Luffy().setup(run)
    with pytest.raises(ValueError, match="per_prompt"):
        Luffy(per_prompt=0)


def labelled(*own, label=1.1, paid=0.1):
    """A group of own rewards and a label that earned `paid` for its form."""
    g = group(*own, label, source=["policy"] * len(own) + ["expert"])
    g.rollouts[-1].rewards = {"accuracy": label - paid, "format": paid / 0.1}
    shape = Visurf()
    shape.setup(
        SimpleNamespace(
            rewards={"accuracy": SimpleNamespace(weight=1.0), "format": SimpleNamespace(weight=0.1)}
        )
    )
    return g, shape(g)


def test_a_label_earns_no_form_and_steps_back_once_it_is_reached():
    assert labelled(0.0, 0.1)[1] == pytest.approx([0.0, 0.1, 1.0])
    g, rewards = labelled(0.0, 1.1, 0.1)
    assert rewards == pytest.approx([0.0, 1.1, 0.1, 0.4])
    for rollout, reward in zip(g, rewards):
        rollout.reward = reward
    (values,) = build(AdvantageEstimator, {"name": "grpo", "scale": "none"})([g])
    assert values == pytest.approx([-0.4, 0.7, -0.3, 0.0])  # as in the group without the label
    alone = group(1.0, source=["expert"])
    assert Visurf()(alone) == [1.0]


@pytest.mark.parametrize("method", ["luffy", "rl_plus", "visurf"])
def test_presets_train(method):
    metrics = steps(text_run([f"methods/{method}"]))
    assert all(m["grad_norm"] > 0 for m in metrics)


def test_labels_of_pictures_join_their_groups():
    run = vision_run(["methods/visurf"])
    metrics = steps(run, 1)
    assert metrics[0]["grad_norm"] > 0 and all(
        [r.source for r in g].count("expert") == 1 and len(g) == 7 for g in last_step(run).groups
    )
