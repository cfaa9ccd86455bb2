"""A judge's verdicts on a run, beside the rule's scores."""

from __future__ import annotations

import pytest

from vlrl.beside.audit import master_key_acceptance
from vlrl.beside.client import Judge
from vlrl.eval.grade import Sample, grade
from vlrl.eval.judge import judge_prompts, judge_report


def test_a_judge_is_reported_beside_the_rule(tmp_path, fixture_data):
    data = fixture_data("mathvista")
    texts = {"1": "2", "2": "It is eight elevenths", "3": "1.2", "4": "no idea", "5": ":", "6": "B"}
    graded = grade(data, {name: [Sample(text)] for name, text in texts.items()}, "vlrl")
    sent = []

    def ask_model(prompts):
        sent.extend(prompts)
        return [
            "Yes." if "eight elevenths" in p or "\n2\n----" in p else "no" if "idea" in p else "hm"
            for p in prompts
        ]

    judge = Judge("judge@2024-08-06", ask_model, tmp_path / "judge.jsonl")
    found = judge_report(judge, graded, labels={"1": True, "2": True, "4": False})
    assert (
        found["judge_only"] == ["2"]
        and found["rule_only"] == []  # "hm" is no verdict, so it is no disagreement with the rule either
        and found["no_verdict"] == pytest.approx(3 / 6)
        and found["accuracy"] == pytest.approx(2 / 3)
    )
    assert (
        found["errors"]["judge"] == {"false_accept": 0, "false_reject": 0, "labelled": 3}
        and found["errors"]["rule"]["false_reject"] == 0.5
    )
    number = len(sent)
    assert (
        judge_report(Judge("judge@2024-08-06", ask_model, tmp_path / "judge.jsonl"), graded)["accuracy"]
        == found["accuracy"]
    )
    assert len(sent) == number  # nothing is asked twice


def test_a_gullible_judge_accepts_every_master_key(tmp_path, fixture_data):
    data = fixture_data("mathvista")
    graded = grade(data, {name: [Sample("x")] for name in data.ids}, "vlrl")
    gullible = Judge("gullible@1", lambda prompts: ["yes"] * len(prompts), tmp_path / "other.jsonl")
    fooled = master_key_acceptance(gullible, lambda text: judge_prompts(graded, text))
    assert set(fooled.values()) == {1.0} and ":" in fooled and "(nothing)" in fooled
