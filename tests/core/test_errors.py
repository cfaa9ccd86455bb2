"""What a user can get wrong ends in one clear line and exit code 2, before any model is loaded."""

import os
import stat

import pytest

from vlrl.config import load
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan

BASE = ["base/rl", "models/tiny_qwen2_5_vl", "tasks/lab_digits", "methods/grpo"]
FILES = ["base/rl", "models/tiny_text"]


def attempt(tmp_path, *overrides, configs=BASE):
    plan = Plan.of(load(configs, [f"output={tmp_path / 'run'}", *overrides]))
    plan.check()
    return plan


@pytest.fixture(autouse=True)
def no_model(monkeypatch):
    from vlrl.policy import Policy

    def refuse(*args, **kwargs):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(Policy, "__init__", refuse)


@pytest.mark.parametrize(
    "override, message",
    [
        ("grop_size=4", "grop_size: unknown key .* Did you mean 'group_size'"),
        ("optimizer.lrr=1", "optimizer.lrr: unknown field .* Did you mean 'lr'"),
        ("optimizer.lr=fast", "optimizer.lr: 'fast' is not valid"),
        (
            "rewards.digits.name=clasification",
            "rewards.digits: no reward named 'clasification'. Did you mean 'classification'",
        ),
        ("rewards.digits.wieght=2", "rewards.digits.wieght: unknown field .* Did you mean 'weight'"),
        ("num_minibatches=3", "num_minibatches=3 does not divide prompts_per_step=8; use one of"),
        ("group_size=0", "group_size is 0; allowed: 1 to 65536"),
        ("group_size=1", "group_size"),
        ("engine.name=vlm", "engine: no engine named 'vlm'. Did you mean 'vllm'"),
        ("policy.tinny=3", "policy.tinny: unknown field"),
        ("data.train=null", "data.train: no source"),
        ("rewards=null", "rewards: none is set"),
        ("policy_loss=null", "policy_loss: not set"),
        ("plugins=[missing.py]", "plugins: no file '.*missing.py'"),
        ("seed=x", "seed: expected a whole number"),
        ("rewards.digits.tasks=[other]", "scored by no reward|answer"),
    ],
)
def test_configs(tmp_path, override, message):
    with pytest.raises(ConfigError, match=message):
        attempt(tmp_path, override, *(["rewards.format=null"] if "tasks" in override else []))


def rows_file(tmp_path, *rows):
    import json

    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = tmp_path / "task.yaml"
    task.write_text(
        f"data: {{train: {{mine: {{name: files, path: {path}, limit: 0.0}}}}}}\nrewards: {{accuracy: "
        f"{{name: exact}}}}\n"
        "sampling: {name: plain, max_tokens: 4}\n"
    )
    return task


@pytest.mark.parametrize(
    "row, message",
    [
        ({"id": "r1", "question": "<image>What?", "answer": "x", "images": ["nowhere.png"]}, "nowhere.png"),
        ({"id": "r1", "question": "What?"}, "answer"),
        ({"id": "r1", "question": "<image><image>What?", "answer": "x"}, "image"),
    ],
)
def test_rows(tmp_path, row, message):
    good = {"id": "r0", "question": "What?", "answer": "x"}
    with pytest.raises((ConfigError, ValueError), match=message):
        attempt(tmp_path, configs=[*BASE[:2], rows_file(tmp_path, good, row), "methods/grpo"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_output(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(ConfigError, match="output: cannot write"):
        attempt(tmp_path)


def test_output_below_a_file(tmp_path):
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(ConfigError, match="output: cannot write to .* give another folder"):
        attempt(tmp_path)


def test_the_command_line_says_it_in_one_line(tmp_path, capsys, monkeypatch):
    from vlrl.cli import main

    monkeypatch.setattr("sys.argv", ["vlrl", "train", *BASE, f"output={tmp_path}/x", "stepps=3"])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert ended.value.code == 2 and err.count("\n") == 1 and out == ""
    assert err.startswith("vlrl: stepps: unknown key (command line). Did you mean 'steps'")


def test_the_eval_key_is_the_callback(tmp_path):
    plan = attempt(tmp_path, "eval={suites: [mathvista], every: 5, data: fixture}")
    assert plan.phases[0].callbacks["eval"].every == 5
    with pytest.raises(ConfigError, match="eval.evry: unknown field .* Did you mean 'every'"):
        attempt(tmp_path, "eval={suites: [mathvista], evry: 5}")
