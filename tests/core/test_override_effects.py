"""Overrides and files that change nothing, or whose value is no map where one belongs, are refused."""

import pytest

from vlrl.config import load
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan

BASE = "quickstart"
SCALARS = ["x", "name:y", "model:/nowhere", "5", "true", "[a]", "{a:b}", "{}", "''", "[{name: x}]"]


def maps(tree, where=""):
    for key, value in tree.items():
        path = f"{where}.{key}".lstrip(".")
        if isinstance(value, dict):
            yield path
            yield from maps(value, path)


def test_no_map_of_a_config_takes_anything_but_a_map():
    found = list(maps(load([BASE]).tree))
    assert len(found) > 25 and {"policy", "rewards", "policy.tiny", "phases.rl.optimizer"} <= set(found)
    for path in found:
        for value in SCALARS:
            with pytest.raises(ConfigError):
                Plan.of(load([BASE], [f"{path}={value}"]))


@pytest.mark.parametrize(
    ("override", "said"),
    {
        "rewards={}": "maps merge; rewards.digits=null removes one, rewards.*=null all",
        "rewards.digits={}": "rewards.digits=null removes it",
        "phases.rl={}": "changes nothing",
        "rewards={mine: {}}": "rewards.mine: {} sets nothing",
        "loss_terms.kll=null": "no 'loss_terms.kll' to remove. Did you mean 'nll'",
        "grop_size=null": "Did you mean 'group_size'",
        "policy={name:x,model:foo}": "write a space after the colon: name: x",
        "policy={name: text, model:foo}": "write a space after the colon: model: foo",
    }.items(),
)
def test_an_override_without_effect_is_refused(override, said):
    with pytest.raises(ConfigError) as failure:
        load([BASE], [override])
    assert said in str(failure.value)


TRUE_ALREADY = ("environment=null", "data.train.digits.heldout={}")


@pytest.mark.parametrize(
    "override",
    ["environment=null", "rewards.format=null", "rewards.*=null", "data.train.digits.heldout={}", "steps=5",
     "phases.rl.rewards.format=null", "loss_terms.nll=null", "rewards={'*': null, mine: {name: exact}}"],
)  # fmt: skip
def test_an_override_with_an_effect_or_a_true_one_is_taken(override):
    config = load([BASE], [override])
    assert (config.tree == load([BASE]).tree) == (override in TRUE_ALREADY)


def test_an_empty_map_in_a_file_is_refused_where_it_inherits_one(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: [quickstart]\nrewards: {}\n")
    with pytest.raises(ConfigError, match=r"mine.yaml: rewards: \{\} changes nothing"):
        load([mine])
    mine.write_text("extends: [base/rl]\nrewards: {}\nloss_terms: {kl: null}\n")
    load([mine])
