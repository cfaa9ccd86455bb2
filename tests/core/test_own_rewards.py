"""A source that brings its reward along: the config gains the slot, may change its fields, and two sources
cannot mean different rewards by it."""

from dataclasses import dataclass

import pytest

from vlrl.config import load
from vlrl.plugins.registry import ConfigError, build, register
from vlrl.plugins.stages import Source
from vlrl.trainer.phase import with_own_rewards
from vlrl.trainer.plan import Plan, one_phase
from vlrl.types import Row


@register("brings_reward")
@dataclass(frozen=True, kw_only=True)
class BringsReward(Source):
    """Two rows of a task, and the reward that scores them (of a test)."""

    task: str = "echo"
    reward: str = "exact"
    answer: str = "6"

    @property
    def own_rewards(self):
        return {"brought": {"name": self.reward, "tasks": [self.task]}}

    def __call__(self):
        return [Row(f"{self.task}-{i}", f"What is {i}?", self.answer, task=self.task) for i in range(2)]


def config(tmp_path, *overrides, train="{one: {name: brings_reward}}"):
    words = [
        f"data.train={train}",
        "prompt_template={name: chat}",
        "data.heldout=null",
        f"output={tmp_path / 'run'}",
    ]
    return load(["base/rl", "models/tiny_text", "methods/grpo"], [*words, *overrides])


def rewards(tree):
    phase = one_phase(tree, tree.phases[0])
    return phase, {slot: (reward.name, reward.tasks, reward.weight) for slot, reward in phase.rewards.items()}


def test_the_config_gains_the_slot_and_it_is_the_outcome(tmp_path):
    phase, found = rewards(config(tmp_path, "rewards.form={name: tag_format, tags: [answer], weight: 0.1}"))
    assert found == {"brought": ("exact", ("echo",), 1.0), "form": ("tag_format", (), 0.1)}
    row = phase.train["one"]()[0]
    assert phase.outcome_slot(row) == "brought"


def test_without_it_the_config_has_no_reward(tmp_path):
    with pytest.raises(ConfigError, match="rewards: none is set"):
        rewards(config(tmp_path, train="{one: {name: lab_arithmetic}}"))


def test_the_config_changes_fields_or_replaces_it(tmp_path):
    assert rewards(config(tmp_path, "rewards.brought={name: exact, weight: 0.5}"))[1] == {
        "brought": ("exact", ("echo",), 0.5)
    }
    assert rewards(config(tmp_path, "rewards.brought={name: numeric}"))[1] == {
        "brought": ("numeric", (), 1.0)
    }
    with pytest.raises(ConfigError, match=r"rewards\.brought.*wieght"):
        rewards(config(tmp_path, "rewards.brought={name: exact, wieght: 0.5}"))


def test_two_sources_join_their_tasks(tmp_path):
    two = "{one: {name: brings_reward}, two: {name: brings_reward, task: other}}"
    assert rewards(config(tmp_path, train=two))[1] == {"brought": ("exact", ("echo", "other"), 1.0)}
    held = config(tmp_path, "data.heldout={more: {name: brings_reward, task: third}}", train=two)
    assert rewards(held)[1] == {"brought": ("exact", ("echo", "other", "third"), 1.0)}


def test_two_sources_that_mean_different_rewards(tmp_path):
    two = "{one: {name: brings_reward}, two: {name: brings_reward, reward: numeric}}"
    with pytest.raises(
        ConfigError, match=r"data\.train\.two: brings another reward 'brought' than data\.train\.one"
    ):
        rewards(config(tmp_path, train=two))


def test_a_slot_for_all_tasks_stays_so():
    class Everywhere:
        own_rewards = {"brought": {"name": "exact"}}

    sources = {"data.train.one": Everywhere(), "data.train.two": build(Source, "brings_reward")}
    assert with_own_rewards({}, sources)["brought"]["tasks"] == []


def test_golds_are_tried_before_torch(tmp_path):
    plan = Plan.of(config(tmp_path))
    plan.check()
    assert plan.row_count == 2
    with pytest.raises(
        ConfigError, match=r"data\.train\.one: row 'echo-0': reward 'brought' cannot read the answer 'six'"
    ):
        Plan.of(config(tmp_path, train="{one: {name: brings_reward, reward: numeric, answer: six}}")).check()
