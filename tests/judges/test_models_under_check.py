"""`vlrl judge check` of reward models: attacks, labelled data and ProcessBench, without a verdict to read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from test_judge_check import is_right
from test_process_rewards import Characters, Classifier
from typer.testing import CliRunner

from vlrl.beside.attacks import ITEMS, RIGHT, WRONG
from vlrl.beside.check import check, labelled_rates
from vlrl.beside.process import ProcessRewardModel
from vlrl.beside.scored import ScoredByModel
from vlrl.cli.judge import app
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.scoring import NoScore
from vlrl.plugins.stages import Reward


@dataclass(frozen=True, kw_only=True)
class Scores(Reward):
    """`of` scores a rollout; `seen` are the groups of one batch."""

    of: object
    correct_at: float = 0.0

    def __call__(self, rollout):
        return self.of(rollout.prompt.row, rollout.text)

    def prepare(self, groups):
        self.seen.append([len(group) for group in groups])

    @property
    def seen(self):
        return self.__dict__.setdefault("_seen", [])


def model(of, **more):
    return ScoredByModel(Scores(of=of, **more))


def knows(row, text):
    """Unbounded, and negative of most right answers: no threshold is at 0."""
    return -5.0 - len(text) / 1e4 if is_right(row.question, text) else -7.0


def likes_length(row, text):
    return len(text) / 10


def likes_brevity(row, text):
    return knows(row, text) if len(text) < 200 else -9.0


def test_reward_models_are_told_apart():
    sound = model(knows)
    report = check(sound)
    assert report.kind == "good" and report.agreement == 1.0 and not report.null
    assert report.judgements == len(ITEMS) * (len(RIGHT) + len(WRONG)) and report.per_1000["calls"] == 0
    (batch,) = sound.reward.seen  # one batch; the answers to a question are a group
    assert batch == [len(RIGHT) + len(WRONG)] * len(ITEMS)
    long = check(model(likes_length))
    assert long.kind == "biased" and long.by_attack["near miss, long"] == 1.0
    assert long.by_attack["empty"] == 0.0
    short = check(model(likes_brevity))
    assert short.kind == "biased" and short.false_reject == 0.5 and short.flip == 1.0
    even = check(model(lambda row, text: 3.0))
    assert even.false_accept == 1.0 and even.false_reject == 1.0 and even.kind == "broken"


def test_the_reference_is_that_of_the_row_and_what_has_no_score_is_no_verdict():
    def by_reference(row, text):
        return NoScore("no tokens") if not text else float(row.answer in text)

    report = check(model(by_reference), limit=1)
    assert report.null == pytest.approx(1 / (len(RIGHT) + len(WRONG)))
    assert report.by_attack["refusal with the gold"] == 1.0 and report.by_attack["near miss"] == 0.0


def test_labelled_data():
    question = ITEMS[0].question
    rows = [
        {"question": question, "reference": "42", "answer": "42", "label": True},
        {"question": question, "reference": "42", "answer": "43", "label": 1},
        {"question": question, "chosen": ["42"], "rejected": ["43", "44"]},
        {"question": question, "chosen": "43", "rejected": "44"},  # equal scores share the credit
        {"question": question, "chosen": "43", "rejected": "42"},
    ]
    found = labelled_rates(model(knows, correct_at=-6.0), rows)
    assert found == {"accuracy": (1 + 0 + 1 + 0.5 + 0) / 5, "null": 0.0, "flip": 0.0, "rows": 5}
    assert labelled_rates(model(knows), rows[:2])["accuracy"] == 0.0  # none reaches correct_at
    with pytest.raises(ConfigError, match="records have pictures, which the model of reward"):
        labelled_rates(model(knows), rows[2:3], [(SimpleNamespace(),)])


SOLUTIONS = [
    {"id": "a-0", "problem": "\x01", "steps": ["\x02", "\x03"], "label": -1},
    {"id": "a-1", "problem": "\x01", "steps": ["\x02", "\x03"], "label": 1},
]


class Falls(Classifier):
    """Right up to a sum of 16 (question, first step and its mark), wrong from there on."""

    def forward(self, input_ids, attention_mask):
        out = super().forward(input_ids, attention_mask)
        out.logits[..., 1] = 0.165 - out.logits[..., 1]
        return out


def test_process_bench_by_steps():
    @dataclass(frozen=True, kw_only=True)
    class Steps(Scores):
        opened: object = None

    def steps_of(classifier):
        reward = Steps(of=knows, opened=ProcessRewardModel(classifier, Characters(), mark="\n"))
        text = SimpleNamespace(render=lambda prompt: prompt.messages[0]["content"])
        reward.setup(SimpleNamespace(policy=text))
        return ScoredByModel(reward)

    sums = labelled_rates(steps_of(Classifier()), SOLUTIONS)  # each step is right
    assert sums["right"] == 1.0 and sums["wrong"] == 0.0 and sums["by_group"] == {"a": 0.0}
    falls = labelled_rates(steps_of(Falls()), SOLUTIONS)  # 1 + 2 + 10 = 13, then 13 + 3 + 10 = 26
    assert falls["right"] == 0.0 and falls["wrong"] == 1.0 and falls["accuracy"] == 0.5
    with pytest.raises(ConfigError, match="scores whole responses, and ProcessBench asks"):
        labelled_rates(model(knows), SOLUTIONS)


def test_the_command(tmp_path):
    data = tmp_path / "process.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in SOLUTIONS))
    words = ["base/rl", "models/tiny_text", "tasks/lab_arithmetic"]
    whole = "rewards.whole={name: reward_model, model: tiny}"
    steps = "rewards.steps={name: step_reward_model, model: tiny}"
    done = CliRunner().invoke(
        app, ["check", *words, steps, "--limit", "2", "--json", "--data", str(data)], catch_exceptions=False
    )
    report = json.loads(done.stdout)["steps"]
    assert report["model"] == "tiny" and report["template"] == "step_reward_model"
    assert report["judgements"] == 2 * (len(RIGHT) + len(WRONG)) and report["data"]["rows"] == 2
    shown = CliRunner().invoke(app, ["check", *words, whole, "--reward", "whole"])
    assert shown.exit_code == 1 and "whole: " in shown.stdout and "0 calls" in shown.stdout
    with pytest.raises(ConfigError, match="no reward of this config is in slot 'other' and has a `judge` or"):
        CliRunner().invoke(app, ["check", *words, whole, "--reward", "other"], catch_exceptions=False)
