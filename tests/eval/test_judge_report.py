"""A judge's verdicts on a run, beside the rule's scores."""

from __future__ import annotations

import pytest

from vlrl.beside.audit import MASTER_KEYS, master_key_acceptance
from vlrl.beside.judge import JudgeConfig
from vlrl.engine.fake import Fake
from vlrl.eval.grade import Sample, grade
from vlrl.eval.judge import judge_questions, judge_report, open_judge, price


def judge_of(reply, folder):
    """A judge whose reply is a function of the prompt, and the prompts that it was sent."""
    sent = []

    def respond(request, _):
        sent.append(request.prompt.text)
        return reply(request.prompt.text)

    return open_judge(
        JudgeConfig("judge@2024-08-06", {}, prices=(1.0, 2.0)), Fake(function=respond), folder
    ), sent


def test_a_judge_is_reported_beside_the_rule(tmp_path, fixture_data):
    data = fixture_data("mathvista")
    texts = {"1": "2", "2": "It is eight elevenths", "3": "1.2", "4": "no idea", "5": ":", "6": "B"}
    graded = grade(data, {name: [Sample(text)] for name, text in texts.items()}, "vlrl")

    def reply(prompt):
        answer = prompt.partition("BEGIN ANSWER")[2].partition("END ANSWER")[0]
        if "eight elevenths" in answer or "\n2\n" in answer:
            return "It is.\nVerdict: yes"
        return "Verdict: no" if "idea" in answer else "hm"

    judge, sent = judge_of(reply, tmp_path)
    assert price(judge, judge_questions(graded))["prompts"] == 6
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
    again, more = judge_of(reply, tmp_path)
    assert judge_report(again, graded)["accuracy"] == found["accuracy"]
    assert sent and not more and price(again, judge_questions(graded))["price"] == 0  # nothing is asked twice


def test_a_gullible_judge_accepts_every_master_key(tmp_path, fixture_data):
    data = fixture_data("mathvista")
    graded = grade(data, {name: [Sample("x")] for name in data.ids}, "vlrl")
    gullible, _ = judge_of(lambda prompt: "yes", tmp_path)
    fooled = master_key_acceptance(gullible, lambda text: judge_questions(graded, text))
    assert set(fooled.values()) == {1.0} and set(fooled) == {"(nothing)", *MASTER_KEYS}
