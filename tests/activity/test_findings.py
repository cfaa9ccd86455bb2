"""The activity report finds what does nothing: each case is a config with one dead or contradictory part,
next to the same config mended."""

import dataclasses
from types import SimpleNamespace

import pytest

from vlrl.activity.check import check, whole_batches
from vlrl.config import Config, load


def findings(*overrides, configs=(), steps=2):
    names = ["base/rl", "models/tiny_text", "tasks/lab_arithmetic", "base/scripted", *configs]
    (result,) = check(load(names, ["group_size=4", "prompts_per_step=2", *overrides]), steps)
    return {finding.slot: finding for finding in result.bad}, result


# name: (slot, overrides that are dead or contradictory, part of the message, overrides that mend it)
CASES = {
    "reward of no row": (
        "rewards.other",
        ["rewards.other={name: numeric, tasks: [counting]}"],
        "scored no rollout",
        ["rewards.other.tasks=[]", "rewards.other.weight=0"],
    ),
    "constant reward": (
        "rewards.format",
        ["engine.form=1", "engine.long=0"],
        "always 1",
        ["engine.form=0.5"],
    ),
    "form not asked for": (
        "rewards.format",
        ["rewards.format={name: tag_count, tags: [why, answer], tasks: [arithmetic]}"],
        "<why>",
        ["rewards.format={name: tag_count, tags: [answer], tasks: [arithmetic]}"],
    ),
    "same reward twice": (
        "rewards.again",
        ["rewards.again={name: numeric, tasks: [arithmetic]}"],
        "the same",
        ["rewards.again.weight=0"],
    ),
    "clip on-policy": (
        "policy_loss",
        ["policy_loss={name: ppo_clip, high: 0.28}"],
        "plain policy gradient",
        ["num_minibatches=2", "group_size=6"],
    ),
    "shaping removed": (
        "reward_shaping.scale",
        ["reward_shaping.scale={name: test_activity_plus}"],
        "no advantage",
        ["reward_shaping.scale.of=length"],
    ),
    "KL without gradient": (
        "loss_terms.kl",
        ["loss_terms.kl={name: test_activity_zero}"],
        "no gradient",
        ["loss_terms.kl={name: entropy_bonus, coef: 0.1}"],
    ),
    "all groups dropped": (
        "group_filters.none",
        ["group_filters.none={name: accuracy_range, low: 2, high: 3}"],
        "dropped all",
        ["group_filters.none.low=0"],
    ),
    "warm-up": ("optimizer", ["optimizer.warmup=200"], "outlast", ["optimizer.warmup=5"]),
    "token weight of 1": (
        "token_weights.one",
        ["token_weights.one={name: test_activity_one}"],
        "1 on every token",
        ["token_weights.one.value=0.5"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_dead_and_contradictory_parts_are_found(case):
    slot, overrides, message, mended = CASES[case]
    bad, _ = findings(*overrides)
    assert message in bad[slot].message and bad[slot].level in ("dead", "contradictory")
    bad, _ = findings(
        *[o for o in overrides if not any(o.partition("=")[0] == m.partition("=")[0] for m in mended)],
        *mended,
    )
    assert slot not in bad


def test_an_ordinary_config_has_no_bad_slot_and_says_what_each_slot_did():
    bad, result = findings()
    assert bad == {}
    text = "\n".join(result.lines)
    assert "rewards.arithmetic" in text and "scored 16 rollouts" in text and "drew 4 rows" in text
    assert result.figures.value("rewards.arithmetic/score.n") == 16
    assert result.figures.value("advantage/nonzero") > 0
    with pytest.raises(KeyError, match="advantage/size"):
        result.figures.value("advantage/nothing")


def test_a_shaping_that_acts_on_masks_is_not_dead():
    bad, _ = findings("reward_shaping.truncated={name: overlong_filter}")
    assert "reward_shaping.truncated" not in bad


def test_observing_changes_no_number():
    from vlrl.trainer.plan import Plan
    from vlrl.trainer.session import Session

    def weights(observed):
        from vlrl.activity.observer import Activity
        from vlrl.trainer.step.loop import train_step

        run = Session(
            Plan.of(
                load(
                    ["base/rl", "models/tiny_text", "tasks/lab_arithmetic", "base/scripted", "methods/dapo"],
                    ["group_size=4", "prompts_per_step=2", "num_minibatches=2"],
                )
            )
        )
        run.open()
        run.enter(0)
        run.observers.members[:] = [Activity(run, keep_gradients=True)] if observed else []
        run.engine.sync(run.policy)
        log = [train_step(run).metrics for _ in range(2)]
        return log, [p.detach().clone() for p in run.policy.model.parameters()]

    (log_a, a), (log_b, b) = weights(True), weights(False)
    assert all((x == y).all() for x, y in zip(a, b, strict=True))
    assert log_a == log_b


def test_gradients_of_tokens_are_those_of_the_loss():
    """Two rollouts with advantages 1 and -1 and token_mean over 5 tokens: d loss / d logp = -A / 5
    on-policy."""
    import torch

    from vlrl.activity.observer import Activity, gradient
    from vlrl.methods.core.loss_aggregation import TokenMean
    from vlrl.methods.core.policy_loss import PPOClip
    from vlrl.trainer.step.objective import Objective
    from vlrl.types import Denominators, LossInputs

    logp_BT = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, 0.0]]).requires_grad_()
    mask_BT = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    x = LossInputs.from_tensors(logp_BT, torch.tensor([1.0, -1.0]), mask_BT)
    activity = Activity(SimpleNamespace(current=None), keep_gradients=True)
    loss, _ = Objective(PPOClip(), TokenMean(), {}, {})(x, Denominators(5.0, 2.0, 1.0), activity)
    expected = torch.tensor([[-0.2, -0.2, -0.2], [0.2, 0.2, 0.0]])
    assert torch.allclose(gradient(loss, x), expected)
    kept = sorted(activity.gradients.values())
    assert kept[0] == pytest.approx([-0.2] * 3) and kept[1][:2] == pytest.approx([0.2] * 2)
    assert activity.figures.value("policy_loss/vs_policy_gradient") == pytest.approx(0.0)


def test_parts_of_a_gradient_do_not_cancel():
    """Loss aux - logp: d / d logp = -1 and d / d aux = 1 give a gradient of size 2, not 0; with + logp, 2."""
    import torch

    from vlrl.activity.observer import gradient
    from vlrl.types import LossInputs

    logp_BT = torch.tensor([[-1.0, -2.0]]).requires_grad_()
    x = LossInputs.from_tensors(logp_BT, torch.tensor([1.0]), torch.tensor([[1.0, 1.0]]))
    aux_BT = torch.tensor([[0.5, 0.25]]).requires_grad_()
    x = dataclasses.replace(x, aux_tensors={"aux": aux_BT})
    assert gradient(aux_BT - x.logp_BT, x).tolist() == [[-2.0, -2.0]]
    assert gradient(aux_BT + x.logp_BT, x).tolist() == [[2.0, 2.0]]
    assert gradient(3 * aux_BT, x).tolist() == [[3.0, 3.0]]


@pytest.mark.parametrize(
    ("slot", "overrides", "message"),
    [
        (
            "reward_shaping.overlong",
            ["reward_shaping.overlong={name: soft_overlong, limit: 4000}"],
            "it waits for answers near the length limit",
        ),
        (
            "loss_terms.entropy",
            ["loss_terms.entropy={name: adaptive_entropy, target: 0.01}"],
            "it waits for an entropy below its target",
        ),
        (
            "loss_terms.kl",
            [
                "loss_terms.kl={name: kl, coef: 0.1}",
                "token_weights.one={name: test_activity_one, value: 0.0}",
            ],
            "in which token_weights.one was 0",
        ),
    ],
)
def test_what_waits_for_something_is_a_note(slot, overrides, message):
    bad, result = findings(*overrides)
    (note,) = (finding for finding in result.findings if finding.slot == slot)
    assert slot not in bad and note.level == "note" and message in note.message


@pytest.mark.parametrize(
    ("prompts", "parts", "expected"),
    [(4, 2, []), (4, 8, ["prompts_per_step=8"]), (4, 3, ["prompts_per_step=3"]), (4, 1, [])],
)
def test_small_batches_are_as_many_prompts_as_mini_batches(prompts, parts, expected):
    assert whole_batches(Config({"prompts_per_step": prompts, "num_minibatches": parts})) == expected


def test_a_reward_that_pays_nobody_says_what_it_did_not_read():
    bad, _ = findings(
        "rewards={'*': null, tagged: {name: test_activity_tagged}}", "prompt_template={name: chat}",
        "engine.skill=0.9", "engine.words=[0, 0]", "engine.long=0", "outcome=null", "group_size=8",
    )  # fmt: skip
    said = bad["rewards.tagged"].message
    assert "always 0 over" in said and "equals the gold and is not paid" in said
    assert "prompt_template.style=answer" in said
