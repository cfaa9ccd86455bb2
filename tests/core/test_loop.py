from dataclasses import replace

import pytest
import torch
from kit import collected, open_run, warnings_of, weights

from vlrl.plugins.registry import ConfigError
from vlrl.trainer.step.loop import assign, learn, mini_batches, train_step
from vlrl.trainer.step.scoring import RewardError
from vlrl.trainer.views import StepView
from vlrl.types import Group, Rollout


def test_the_loop_learns_a_bandit(tmp_path):
    run = open_run(tmp_path)
    history = []
    for _ in range(40):
        history.append(train_step(run).metrics["reward/total"])
    assert sum(history[-5:]) / 5 > 0.9 > 0.7 > sum(history[:3]) / 3


def stepped(tmp_path, *overrides, reward="test_loop_ids"):
    run = open_run(tmp_path, *overrides, reward=reward)
    metrics = train_step(run).metrics
    return weights(run), metrics


@pytest.mark.parametrize("change", ["micro_batch_tokens=1", "policy.layout=padded", "micro_batch_tokens=40"])
@pytest.mark.parametrize("method", ["grpo", "dr_grpo", "dapo", "grpo_kl"])
def test_any_split_and_layout_gives_the_same_step(tmp_path, change, method):
    configs = ("base/rl", f"methods/{method}")
    results = []
    for overrides in ([], [change]):
        run = open_run(
            tmp_path,
            "optimizer={kind: sgd, lr: 1.0}",
            "group_size=4",
            *overrides,
            reward="test_loop_ids",
            configs=configs,
        )
        before = weights(run)
        train_step(run)
        results.append(weights(run) - before)
    assert results[0].norm() > 1e-3
    assert (results[0] - results[1]).norm() / results[0].norm() < 1e-4


def test_groups_without_advantage_are_skipped_and_change_nothing(tmp_path, monkeypatch):
    from vlrl.trainer.step.objective import Objective

    skipped, metrics = stepped(tmp_path)
    monkeypatch.setattr(Objective, "skips_zero", property(lambda self: False))
    full, _ = stepped(tmp_path)
    assert torch.allclose(skipped, full, atol=1e-7)
    run = open_run(tmp_path, reward="test_loop_constant")
    monkeypatch.undo()
    metrics = train_step(run).metrics
    assert metrics["skipped_groups"] == 4 and metrics["zero_variance"] == 1.0 and metrics["grad_norm"] == 0.0


def test_old_log_probs_are_computed_only_off_policy(tmp_path):
    run = open_run(tmp_path, reward="test_loop_ids")
    view = collected(run)
    groups = view.record.groups
    assign(view)
    before = run.policy.counters["head_rows"]
    learn(view)
    trained = sum(len(r) for g in groups if any(r.advantage for r in g) for r in g)
    rows = run.policy.counters["head_rows"] - before
    assert 0.9 * trained < rows <= trained, (
        "one pass, in which a first token that rollouts of a group share counts once"
    )
    assert "old_logp" not in groups[0].rollouts[0].signals
    run = open_run(tmp_path, "ppo_epochs=2", reward="test_loop_ids")
    step = train_step(run)
    assert all("old_logp" in r.signals for g in step.groups for r in g)
    assert step.updates == 2


def test_totals_are_of_the_whole_step(tmp_path):
    run = open_run(tmp_path, "num_minibatches=2", "micro_batch_tokens=1", reward="test_loop_ids")
    view = collected(run)
    groups = view.record.groups
    assign(view)
    parts = mini_batches(view, view.record.groups, 0)
    assert len(parts) == 2 and all(len(part.micro_batches) == 2 for part in parts)
    assert sum(part.loss_denominators.sequences for part in parts) == sum(map(len, groups)) == 32
    assert sum(part.loss_denominators.tokens for part in parts) == sum(len(r) for g in groups for r in g)


def test_a_reward_that_raises_is_counted_and_its_rollouts_dropped(tmp_path):
    run = open_run(tmp_path, "error_limit=0.5", reward="test_loop_broken")
    step = train_step(run)
    assert step.metrics["reward/errors"] == 8
    assert step.metrics["group_filter/all_rollouts_failed_scoring"] == 1
    assert all(group.row.id != "r1" for group in step.groups)
    assert "'mine' raised on row 'r1': RuntimeError: the judge is out" in warnings_of(run)[0]


def test_a_strategy_may_ask_for_rewards_before_the_loop_does(tmp_path, monkeypatch):
    run = open_run(tmp_path, "group_size=4", reward="test_loop_ids")
    asked = []
    call = type(run.rewards["mine"]).__call__
    monkeypatch.setattr(
        type(run.rewards["mine"]),
        "__call__",
        lambda self, rollout: (asked.append(id(rollout)), call(self, rollout))[1],
    )
    view = StepView(run, run.begin_step())
    groups = run.rollout([run.prompt_template(row) for row in run.prompt_sampler(2)], [4, 4], view)
    view.score(groups)
    early = [list(group.rewards) for group in groups]
    groups[0].rollouts.append(replace(groups[1].rollouts[0], rewards={}))
    view.score(groups)
    assert early == [groups[0].rewards[:4], groups[1].rewards] and len({*early[0], *early[1]}) > 1
    assert len(asked) == len(set(asked)) == 9 == run.score_counts.scored


def test_the_tools_of_a_run_split_and_batch_as_the_policy_does(tmp_path):
    run = open_run(tmp_path, "group_size=4", "micro_batch_tokens=1", reward="test_loop_ids")
    groups = collected(run).record.groups
    parts = run.micro_batches(groups)
    assert [len(part) for part in parts] == [1] * 4 and {part[0].id for part in parts} == {
        group.id for group in groups
    }
    logp_BT = run.policy.forward(run.batch(parts[0]))["logp"]
    assert logp_BT.shape[0] == 4 and logp_BT.requires_grad
    assert (run.rank, run.ranks, run.gather([1, 2]), run.sum_tensor(torch.ones(2)).tolist()) == (
        0,
        1,
        [1, 2],
        [1.0, 1.0],
    )


def test_a_broken_verifier_stops_the_run(tmp_path):
    run = open_run(tmp_path, "error_limit=0.1", reward="test_loop_broken")
    with pytest.raises(RewardError, match="8 of 32 rollouts could not be scored .error_limit 0.1"):
        train_step(run)


def test_a_step_without_survivors_learns_nothing_and_says_so(tmp_path):
    run = open_run(
        tmp_path, "max_refill_rounds=2", reward="test_loop_constant", configs=("base/rl", "methods/dapo")
    )
    before = weights(run)
    metrics = train_step(run).metrics
    assert torch.equal(before, weights(run)) and metrics["groups"] == 0
    assert any("no group passed" in message for message in warnings_of(run))


def test_a_loss_that_is_not_finite_names_the_rows(tmp_path):
    run = open_run(tmp_path, reward="test_loop_ids")
    with torch.no_grad():
        next(iter(run.policy.model.parameters())).fill_(float("nan"))
    step = run.begin_step()
    for row in run.prompt_sampler(1):
        prompt = run.prompt_template(row)
        rollouts = [Rollout(prompt, [5, 6], reward=r, logp=[0.0, 0.0]) for r in (0.0, 1.0)]
        step.groups.append(Group(prompt, rollouts))
    view = StepView(run, step)
    assign(view)
    with pytest.raises(FloatingPointError, match=r"the loss is nan .rows \['r\d'\]"):
        learn(view)


def test_long_prompts_are_refused_never_cut(tmp_path):
    with pytest.raises(
        ConfigError, match=r"row 'r0' has \d+ tokens, max_prompt_tokens is 20; .*never truncated"
    ):
        open_run(tmp_path, "max_prompt_tokens=20", "data.train.mine.words=30")


def test_same_seed_same_numbers_another_seed_others(tmp_path):
    (a, first), (b, second), (c, third) = stepped(tmp_path), stepped(tmp_path), stepped(tmp_path, "seed=1")
    assert torch.equal(a, b) and first == second
    assert not torch.equal(a, c) and first != third


def test_a_row_that_cannot_be_shown_is_left_out_and_replaced(tmp_path, monkeypatch):
    from vlrl.types import MediaError

    run = open_run(tmp_path, reward="test_loop_ids")
    ask = type(run.prompt_template).__call__

    def broken(self, row):
        if row.id == "r2":
            raise MediaError("r2.png: not a picture")
        return ask(self, row)

    monkeypatch.setattr(type(run.prompt_template), "__call__", broken)
    step = train_step(run)
    assert step.metrics["data/dropped"] >= 1 and step.metrics["groups"] == 4
    assert all(group.row.id != "r2" for group in step.groups)
    assert any("row 'r2' was left out: r2.png: not a picture" in message for message in warnings_of(run))


@pytest.mark.parametrize(
    "overrides", [["num_minibatches=4"], ["ppo_epochs=2"], ["num_minibatches=2", "ppo_epochs=2"]]
)
def test_groups_that_cannot_learn_are_never_forwarded(tmp_path, overrides):
    run = open_run(tmp_path, *overrides, reward="test_loop_constant")
    view = collected(run)
    assign(view)
    before = run.policy.counters["head_rows"]
    learn(view)
    assert view.record.counts["skipped_groups"] == 4 * run.settings.ppo_epochs
    assert run.policy.counters["head_rows"] - before <= len(overrides) * 8  # dummy batches alone
    assert not any("old_logp" in rollout.signals for group in view.groups for rollout in group)
