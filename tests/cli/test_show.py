import json

import pytest
import yaml

from vlrl.plugins.registry import ConfigError

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
        "seed": "child.yaml:2", "lr": "child.yaml:4", "betas": "parent.yaml:4", "eps": "command line",
        "steps": "child.yaml:7",
        "name": "command line", "rl": "child.yaml:8",
    }  # fmt: skip
    assert text.splitlines()[0].startswith("steps: 10") and "parent.yaml:1" in text.splitlines()[0]


def test_what_is_printed_is_yaml_of_the_same_tree(vlrl, config):
    tree = json.loads(vlrl("show", config, "--json")[1])["tree"]
    assert yaml.safe_load(vlrl("show", config)[1]) == tree
    assert tree["optimizer"] == {"lr": 1e-4, "betas": [0.9, 0.95]}


def test_a_value_says_in_which_phases_it_does_not_hold(vlrl, config):
    said = comments(vlrl("show", "quickstart", "steps=5")[1])
    assert said["steps"].startswith("lab.yaml:")  # the last line is the cold start's own
    lines = vlrl("show", "quickstart", "steps=5")[1].splitlines()
    top = {line.partition(":")[0]: line.partition("  # ")[2] for line in lines if not line.startswith(" ")}
    assert top["steps"] == "command line; not in cold_start" and top["prompts_per_step"].endswith(
        "rl.yaml:6; not in any phase"
    )
    assert top["seed"].endswith("quickstart.yaml:4")
    assert (
        lines[-1].startswith("# phase cold_start keeps its own steps (25): ")
        and "phases.cold_start.steps=... changes it" in lines[-1]
    )
    assert comments(vlrl("show", "quickstart", "steps=5", "--phase", "rl")[1])["steps"] == "command line"
    assert comments(vlrl("show", "quickstart", "steps=5", "--phase", "cold_start")[1])["steps"].startswith(
        "lab.yaml:"
    )
    assert json.loads(vlrl("show", "quickstart", "steps=5", "--json")[1])["kept"] == [
        lines[-1].removeprefix("# ")
    ]


def test_one_phase(vlrl, config):
    text = vlrl("show", config, "--phase", "sft")[1]
    assert yaml.safe_load(text)["steps"] == 4 and comments(text)["steps"] == "child.yaml:7"
    assert "phases" not in yaml.safe_load(text)
    with pytest.raises(ConfigError, match="no phase named 'rll'; this config has sft, rl"):
        vlrl("show", config, "--phase", "rll")


def test_a_misspelt_key_is_refused(vlrl, config):
    with pytest.raises(ConfigError, match=r"stpes: unknown key .*Did you mean 'steps'"):
        vlrl("show", config, "stpes=3")


def test_shipped_files_have_short_names_in_another_folder(vlrl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = vlrl("show", "quickstart")[1].splitlines()
    assert [line for line in lines if line.startswith("seed:") and line.endswith("  # quickstart.yaml:4")]
    assert [
        line for line in lines if line.startswith("# shipped files are in ")
    ] and "base/lab.yaml:3" in str(lines)
