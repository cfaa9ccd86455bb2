"""Log-probs that are known are not computed again: those of the first update, and the reference's of rollouts
that come again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kit import collected, open_run, weights

from vlrl.methods.common.token_memory import TokenMemory, key_of, keys_of
from vlrl.policy.policy import Policy
from vlrl.trainer.step.loop import assign, learn
from vlrl.types import Group

STEP = ("group_size=4", "sampling.max_tokens=6", "watch.activity_steps=0")


def counted(run, monkeypatch):
    """A list that grows by (with gradient, tokens) at every forward pass."""
    seen, forward = [], Policy.forward

    def counting(self, batch, aux_tensors=()):
        before = self.counters["tokens"]
        out = forward(self, batch, aux_tensors)
        seen.append((torch.is_grad_enabled(), self.counters["tokens"] - before))
        return out

    monkeypatch.setattr(Policy, "forward", counting)
    return seen


def learned(tmp_path, monkeypatch, own_pass, *overrides):
    """(weights after a step, tokens of forward passes without and with gradient, old log-probs of all
    rollouts)."""
    with monkeypatch.context() as patch:
        run = open_run(tmp_path, *STEP, *overrides, reward="test_loop_ids")
        view = collected(run)
        assign(view)
        seen = counted(run, patch)
        patch.setattr(Policy, "has_dropout", property(lambda self: own_pass))
        learn(view)
        tokens = [sum(n for grad, n in seen if grad is with_grad) for with_grad in (False, True)]
        return weights(run), *tokens, [r.signals["old_logp"] for group in view.groups for r in group]


@pytest.mark.parametrize(
    "words,share",
    [(("ppo_epochs=3",), 0.0), (("num_minibatches=4",), 0.75), (("ppo_epochs=2", "num_minibatches=2"), 0.5)],
)
def test_the_first_update_gives_the_old_log_probs_of_its_groups(tmp_path, monkeypatch, words, share):
    shared, tokens, trained, old = learned(tmp_path / "a", monkeypatch, False, *words)
    alone, all_tokens, all_trained, all_old = learned(tmp_path / "b", monkeypatch, True, *words)
    assert all_tokens > 0 and trained == all_trained
    assert tokens == pytest.approx(share * all_tokens, abs=0.15 * all_tokens), "groups differ in length"
    assert (tokens == 0) is (share == 0)
    torch.testing.assert_close(shared, alone, atol=1e-5, rtol=1e-4)
    for mine, theirs in zip(old, all_old, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)


def test_dropout_is_noticed(tmp_path):
    run = open_run(tmp_path, *STEP)
    assert not run.policy.has_dropout
    run.policy.model.extra = torch.nn.Dropout(0.1)
    assert run.policy.has_dropout


def with_reference(tmp_path, *overrides):
    run = open_run(
        tmp_path, *STEP, *overrides, reward="test_loop_ids", configs=("base/rl", "methods/grpo_kl")
    )
    return run, collected(run).record.groups, run.aux_tensors["ref_logp"]


def again(group):
    """The group as a replay buffer gives it: the same tokens, nothing known about them."""
    return Group(group.prompt, [replace(r, signals={}, info={}) for r in group], f"{group.id}/again")


def test_the_reference_scores_a_rollout_once(tmp_path, monkeypatch):
    run, groups, tensor = with_reference(tmp_path)
    first = tensor(run.policy, run.batch(groups))
    run.policy.model.get_input_embeddings().weight.data.add_(0.5)  # the policy moves on, the reference stays
    seen = counted(run, monkeypatch)
    torch.testing.assert_close(
        tensor(run.policy, run.batch([again(g) for g in groups])), first, rtol=0, atol=0
    )
    assert not seen and tensor.state.memory.hits == 16
    hotter = again(groups[0])
    for rollout in hotter:
        rollout.temperature = 2.0
    mixed = tensor(run.policy, run.batch([again(groups[1]), hotter]))
    alone = replace(tensor, remember=0)
    alone.setup(run)
    torch.testing.assert_close(
        mixed, alone(run.policy, run.batch([again(groups[1]), hotter])), rtol=0, atol=1e-6
    )
    assert len(seen) == 2 and 0 < seen[0][1] < seen[1][1], "one group, then both"


def test_a_new_reference_scores_anew(tmp_path, monkeypatch):
    run, groups, tensor = with_reference(tmp_path)
    before = tensor(run.policy, run.batch(groups))
    with torch.no_grad():
        run.policy.model.get_input_embeddings().weight.add_(
            torch.randn_like(run.policy.model.get_input_embeddings().weight)
        )
    run.policy.keep_reference(renew=True)
    renewed = tensor(run.policy, run.batch(groups))
    assert (renewed - before).abs().max() > 1e-3
    torch.testing.assert_close(
        renewed, run.policy.forward(run.batch(groups))["logp"].detach(), rtol=0, atol=1e-6
    )
    state = {
        "weights": {name: value * 0.5 for name, value in run.policy.reference_state()["weights"].items()}
    }
    run.policy.load_reference(state)
    assert (tensor(run.policy, run.batch(groups)) - renewed).abs().max() > 1e-3, "written in place"


def test_memory_is_bounded_and_knows_rollouts_by_all_that_matters(tmp_path):
    run, groups, _ = with_reference(tmp_path)
    memory = TokenMemory(10)
    batch = run.batch(groups)
    values_BT = (
        torch.arange(batch.ids_BT.numel(), dtype=torch.float32).reshape(batch.ids_BT.shape) * batch.mask_BT
    )
    assert torch.equal(memory(run, run.policy.model, batch, lambda part: values_BT), values_BT)
    last = batch.rollouts[-1]
    assert sum(len(known) for known in memory._known.values()) <= 10 and keys_of(batch)[-1] in memory._known
    changes = (
        {"ids": [*last.ids[:-1], last.ids[-1] + 1]},
        {"loss_mask": [False] * len(last)},
        {"prompt": groups[0].prompt},
    )
    known = {key_of(replace(last, **change), [1.0]) for change in ({}, *changes)}
    assert len(known | {key_of(last, [0.5])}) == 5
    assert key_of(replace(last, signals={}, logp=[]), [1.0]) == key_of(last, [1.0])
    with pytest.raises(ValueError, match="remember is -1"):
        replace(run.aux_tensors["ref_logp"], remember=-1)
