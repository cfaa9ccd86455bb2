"""B-Coder: differences, loss, ranking and graded unit tests by hand; the conservative operator in a run."""

from __future__ import annotations

import pytest
import torch
from make import group, inputs
from tiny import steps, text_run
from vlrl_rewards.code.feedback import UnitTestFeedback

from vlrl.methods.core.critic import RETURNS
from vlrl.methods.papers.b_coder import (
    BCoder,
    BCoderBest,
    BCoderRanking,
    BCoderTd,
    Chosen,
    LeadOfChosen,
    lead,
    program_score,
)
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import TOKEN_ADVANTAGES

RUN = [
    "rollout={name: luffy}",
    "advantage={name: b_coder}",
    "token_credit={name: per_token}",
    "policy_loss={name: b_coder.td}",
    "callbacks={critic: {name: critic}}",
    "num_minibatches=2",
    "metrics={ranking: {name: b_coder.ranking}}",
    "optimizer.lr=3e-2",
]


def given(reward=1.0, caution=(0.0, -2.0, -3.0)):
    made = group(reward, lengths=[3])
    rollout = made.rollouts[0]
    rollout.signals = {"value": [0.5, 0.25, 0.0], "b_coder.old_lead": [0.0, -1.0, -4.0]}
    rollout.signals |= {"b_coder.caution": list(caution)} if caution else {}
    return made, rollout


def test_the_differences_by_hand():
    made, rollout = given()
    BCoder(alpha=0.1)([made])
    # V + alpha caution of the next state, less V + alpha lead:
    # 0.25 - 0.2 - 0.5; 0 - 0.3 - 0.25 + 0.1; 1 - 0 + 0.4
    assert TOKEN_ADVANTAGES[rollout] == pytest.approx([-0.45, -0.45, 1.4])
    assert RETURNS[rollout] == pytest.approx([0.05, -0.2, 1.4])  # V + delta
    made, rollout = given(caution=None)
    BCoder(alpha=0.1, conservative=False, gamma=0.5)([made])
    assert TOKEN_ADVANTAGES[rollout] == pytest.approx([-0.375, -0.15, 1.4])  # the usual operator: max Q = V
    assert BCoder()([]) == []


def test_the_operator_is_conservative():
    """No target is above the usual operator's; all are equal where the policy takes the same tokens."""
    usual, rollout = given(caution=None)
    BCoder(conservative=False)([usual])
    wanted = RETURNS[rollout]
    for caution, equal in (((0.0, -2.0, -3.0), False), ((0.0, 0.0, 0.0), True)):
        made, rollout = given(caution=caution)
        BCoder()([made])
        assert all(a <= b for a, b in zip(RETURNS[rollout], wanted)) and (RETURNS[rollout] == wanted) is equal


def test_the_lead_is_the_models_own_order():
    logits = torch.tensor([[1.0, 3.0, 0.0], [2.0, 2.0, -1.0]])
    assert lead(logits, torch.tensor([0, 1])).tolist() == [-2.0, 0.0]
    best = BCoderBest().from_logits(logits, torch.tensor([0, 1]))
    assert torch.allclose(best, logits.log_softmax(1).amax(1))
    chosen = Chosen()
    assert chosen.from_logits(logits, torch.tensor([2, 2])).tolist() == [1.0, 0.0]
    other = LeadOfChosen(iter(chosen.chunks)).from_logits(-logits, torch.tensor([2, 2]))
    assert other.tolist() == [-3.0, -3.0]  # of tokens 1 and 0 under the other logits


def test_the_loss_by_hand():
    x = inputs(
        [[-1.0, -2.0]],
        advantage=[[0.5, -0.5]],
        **{"b_coder.best": [[-0.5, -0.5]], "b_coder.old_lead": [[-0.5, -0.5]]},
    )
    found = BCoderTd(alpha=0.1)(x)
    assert found.loss.tolist() == [pytest.approx([0.25, 0.16])]  # (0 - 0.5)^2, (0.1 * -1 + 0.5)^2
    (gradient,) = torch.autograd.grad(found.loss.sum(), x.logp_BT)
    assert gradient.tolist() == [pytest.approx([-0.1, 0.08])]  # 2 alpha (alpha move - delta)


def test_programs_are_ranked_by_their_recovered_reward():
    made = group(1.0, 0.0, lengths=[2, 2])
    for rollout, leads in zip(made.rollouts, ([0.0, -1.0], [-3.0, 0.0])):
        rollout.signals = {"value": [0.5, 9.0], "b_coder.old_lead": leads}
    assert [program_score(r, 0.1) for r in made] == pytest.approx([0.4, 0.2])  # V(s_0) + alpha sum of leads
    for rollout in made:
        rollout.signals["b_coder.caution"] = [0.0, -0.5]
    assert BCoderRanking()([made]) == {"caution": -0.25, "ranked_first": 1.0, "chance": 0.5}
    made.rollouts[0].source = "expert"
    assert BCoderRanking()([made]) == {"caution": -0.25} and BCoderRanking()([]) == {}


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("```python\ndef f(x):\n    return 2 * x\n```", 1.0),
        ("```python\ndef f(x):\n    return x\n```", -0.3),
        ("```python\ndef f(x):\n    return 4 if x == 2 else 1 / 0\n```", -0.6),
        ("```python\ndef f(x):\n    while True: pass\n```", -0.6),
        ("```python\ndef f(x:\n    return 2 * x\n```", -1.0),
        ("```python\ndef g(x):\n    return 2 * x\n```", -0.6),
        ("I would multiply by two.", -1.0),
        ("", -1.0),
        ("```python\nclass A(int):\n    __eq__ = lambda a, b: True\ndef f(x):\n    return A(7)\n```", -0.3),
        ("```python\nimport os\ndef f(x):\n    os._exit(0)\n```", -0.6),
    ],
)
def test_graded_unit_tests(text, score):
    found = UnitTestFeedback(seconds=1.0).verify("assert f(2) == 4\nassert f(3) == 6", text)
    assert (found.score, found.correct) == (score, score == 1.0), found


def test_in_a_run_the_operator_takes_off_nothing_before_the_policy_moves():
    metrics = steps(text_run(["methods/grpo"], RUN), 3)
    assert all(m["td_error"] > 0 and "ranking/ranked_first" in m for m in metrics)
    assert metrics[0]["ranking/caution"] == 0.0 and metrics[-1]["ranking/caution"] < 0.0


@pytest.mark.parametrize(
    ("override", "match"),
    [
        ("policy_loss.alpha=0.2", "alpha=0.2, and the advantage is 'b_coder' with alpha=0.1"),
        ("advantage={name: gae}", "the advantage is 'gae'"),
        ("advantage.alpha=0", "alpha=0"),
        ("token_credit={name: uniform}", "per token"),
        ("callbacks=null", "critic"),
    ],
)
def test_what_it_needs(override, match):
    with pytest.raises(ConfigError, match=match):
        text_run(["methods/grpo"], [*RUN, override])
    with pytest.raises(ConfigError, match="unit_test_feedback.pay"):
        UnitTestFeedback(pay={"passed": 1.0})
