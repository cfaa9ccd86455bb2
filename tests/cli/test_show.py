import json

import pytest
import yaml

from vlrl.registry import ConfigError

PARENT = "steps: 10\noptimizer:\n  lr: 1e-3\n  betas: [0.9, 0.95]\nadvantage: {name: grpo, eps: 1.0e-4}\n"
CHILD = "extends: parent\nseed: 3\noptimizer:\n  lr: 1e-4\nphases:\n  sft:\n    steps: 4\n  rl: {}\n"


@pytest.fixture
def config(tmp_path):
    (tmp_path / "parent.yaml").write_text(PARENT)
    (tmp_path / "child.yaml").write_text(CHILD)
    return tmp_path / "child.yaml"


def comments(text):
    """{key: the file:line behind it}"""
    lines = [line.partition("  # ") for line in text.splitlines()]
    return {line.partition(":")[0].strip(): origin.rpartition("/")[2] for line, _, origin in lines if origin}


def test_every_value_names_its_place(vlrl, config):
    code, text = vlrl("show", config, "advantage.eps=1e-2", "loss_aggregation={name: token_mean}")
    assert code == 0
    assert comments(text) == {
        "seed": "child.yaml:2", "lr": "child.yaml:4", "betas": "parent.yaml:4", "eps": "command line", "steps": "child.yaml:7",
        "name": "command line", "rl": "child.yaml:8",
    }  # fmt: skip
    assert text.splitlines()[0].startswith("steps: 10") and "parent.yaml:1" in text.splitlines()[0]


def test_what_is_printed_is_yaml_of_the_same_tree(vlrl, config):
    tree = json.loads(vlrl("show", config, "--json")[1])["tree"]
    assert yaml.safe_load(vlrl("show", config)[1]) == tree
    assert tree["optimizer"] == {"lr": 1e-4, "betas": [0.9, 0.95]}


def test_one_phase(vlrl, config):
    text = vlrl("show", config, "--phase", "sft")[1]
    assert yaml.safe_load(text)["steps"] == 4 and comments(text)["steps"] == "child.yaml:7"
    assert "phases" not in yaml.safe_load(text)
    with pytest.raises(ConfigError, match="no phase named 'rll'; this config has sft, rl"):
        vlrl("show", config, "--phase", "rll")


def test_a_misspelt_key_is_refused(vlrl, config):
    with pytest.raises(ConfigError, match=r"stpes: unknown key .*Did you mean 'steps'"):
        vlrl("show", config, "stpes=3")
