"""`logp_temperature`: what logits are divided by for the log-probs of the loss."""

import pytest
import torch
from kit import collected, open_run, weights

from vlrl.plugins.registry import ConfigError
from vlrl.trainer.step.loop import assign, train_step
from vlrl.trainer.step.loss_inputs import add_signals, loss_inputs, make_batch
from vlrl.types import Group, Prompt, Rollout, Row

KL = ("base/rl", "methods/grpo_kl")
COLD = ("sampling.temperature=0.5", "group_size=4")


def inputs(tmp_path, *overrides):
    run = open_run(tmp_path, *COLD, *overrides, reward="test_loop_ids", configs=KL)
    view = collected(run)
    assign(view)
    add_signals(run.policy, view.current, view.groups, ["old_logp", "ref_logp"])
    return run, loss_inputs(run.policy, view.current, view.groups)


def reference(run, rollout, temperature):
    """Log-probs and entropies of a rollout from the model's own logits, without the trainer."""
    prompt = run.policy.encode(rollout.prompt).ids
    ids = torch.tensor([[*prompt, *rollout.ids]])
    logits_TV = run.policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].detach().float()
    logits_TV[:, list(run.policy.forbidden_ids)] = float("-inf")
    logp_TV = (logits_TV / temperature).log_softmax(-1)
    entropy_T = torch.distributions.Categorical(logits=logp_TV).entropy()
    return logp_TV.gather(-1, torch.tensor(rollout.ids)[:, None])[:, 0], entropy_T


@pytest.mark.parametrize("setting,divisor", [("1.0", 1.0), ("2.0", 2.0), ("sampling", 0.5)])
def test_policy_old_policy_reference_and_entropy_are_at_one_temperature(tmp_path, setting, divisor):
    run, x = inputs(tmp_path, f"logp_temperature={setting}")
    for b, rollout in enumerate(x.batch.rollouts):
        assert rollout.temperature == 0.5, "what it was sampled at stays known"
        logp_T, entropy_T = reference(run, rollout, divisor)
        seen = slice(0, len(rollout))
        for told in (x.logp_BT, x.old_logp_BT, x["ref_logp"]):
            torch.testing.assert_close(told[b, seen].detach(), logp_T, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(x["entropy"][b, seen].detach(), entropy_T, atol=1e-4, rtol=1e-4)
        sampled_T, _ = reference(run, rollout, 0.5)
        torch.testing.assert_close(x.sampled_logp_BT[b, seen], sampled_T, atol=1e-4, rtol=1e-4)


def test_the_engine_is_compared_with_the_trainer_only_at_its_own_temperature(tmp_path):
    def metrics(*overrides):
        return train_step(open_run(tmp_path, *overrides, reward="test_loop_ids")).metrics

    at_one = metrics(*COLD, "logp_temperature=1.0")
    assert "engine/kl" not in at_one and "engine/logp_diff" not in at_one
    assert metrics(*COLD)["engine/kl"] < 1e-6
    assert metrics("logp_temperature=1.0")["engine/kl"] < 1e-6


@pytest.mark.parametrize("temperature,same", [(1.0, True), (0.5, False)])
def test_samples_at_one_train_alike_and_others_do_not(tmp_path, temperature, same):
    after = []
    for setting in ("sampling", 1.0):
        words = f"sampling.temperature={temperature}", "ppo_epochs=2", f"logp_temperature={setting}"
        run = open_run(tmp_path, *words, reward="test_loop_ids", configs=KL)
        train_step(run)
        after.append(weights(run))
    assert torch.equal(*after) is same


def test_a_number_stands_for_every_token_of_a_schedule():
    prompt = Prompt(Row("a", "a"), ({"role": "user", "content": "a"},))
    groups = [Group(prompt, [Rollout(prompt, [1, 2], temperature=[0.5, 2.0]), Rollout(prompt, [3])])]
    assert make_batch(groups, 0).temperature_BT.tolist() == [[0.5, 2.0], [1.0, 1.0]]
    assert make_batch(groups, 0, "cpu", 1.5).temperature_BT.tolist() == [[1.5, 1.5], [1.5, 1.0]]


@pytest.mark.parametrize("value", ["0", "-1", "warm", "true", "1.0e4"])
def test_what_is_no_temperature_is_refused(tmp_path, value):
    with pytest.raises(ConfigError, match="logp_temperature.*number"):
        open_run(tmp_path, f"logp_temperature={value}")
