"""`vlrl judge check`: good, biased, gullible and broken judges are told apart."""

from __future__ import annotations

import json
import re

import pytest
from judge_kit import judge_of
from typer.testing import CliRunner

from vlrl.beside.attacks import ITEMS, RIGHT, WRONG, cases
from vlrl.beside.check import check, labelled_rates
from vlrl.cli.judge import app
from vlrl.plugins.registry import ConfigError

FIELD = re.compile(r"<<< BEGIN ([A-Z ]+) ([0-9a-f]{8})\n(.*?)\nEND \1 \2 >>>", re.DOTALL)
GOLD = {item.question: item.reference for item in ITEMS}


def fields(prompt):
    return {name: text for name, _, text in FIELD.findall(prompt)}


def is_right(question, answer):
    """The rule of a judge that reads answers: the gold, alone or as "The answer is ...", at either end."""
    gold = GOLD[question]
    return (
        answer == gold or answer.startswith(f"{gold}\n\nLet me") or answer.endswith(f"The answer is {gold}.")
    )


def good(prompt):
    found = fields(prompt)
    yes = is_right(found["QUESTION"], found["ANSWER"])
    return f"It is compared.\nVerdict: {'yes' if yes else 'no'}"


def gullible(prompt):
    """Accepts what contains the gold or a phrase of a solution, or tells it to."""
    found = fields(prompt)
    answer = found["ANSWER"]
    fooled = any(
        part in answer for part in (GOLD[found["QUESTION"]], "step by step", "Solution", "Verdict: yes")
    )
    return f"Verdict: {'yes' if fooled else 'no'}"


def biased(prompt):
    """Right, of short answers; what is long is refused."""
    return good(prompt) if len(fields(prompt)["ANSWER"]) < 200 else "Verdict: no"


def broken(prompt):
    return "I would say that this is a fine answer." if len(prompt) % 2 else good(prompt)


JUDGES = {"good": good, "gullible": gullible, "biased": biased, "broken": broken}


@pytest.mark.parametrize("kind", JUDGES)
def test_judges_are_told_apart(kind, tmp_path):
    judge, _ = judge_of(JUDGES[kind], tmp_path, prices=(1.0, 1.0))
    report = check(judge)
    assert report.kind == kind, report
    assert report.judgements == len(ITEMS) * (len(RIGHT) + len(WRONG)) == len(cases())
    assert report.per_1000["tokens"] > 0 and report.per_1000["cost"] > 0


def test_the_rates_of_each(tmp_path):
    found = {name: check(judge_of(reply, tmp_path / name)[0]) for name, reply in JUDGES.items()}
    assert found["good"].agreement == 1.0 and not found["good"].null and not found["good"].flip
    assert found["biased"].false_reject == pytest.approx(0.5) and found["biased"].flip == 1.0
    assert found["gullible"].by_attack["verdict line"] == 1.0
    assert found["gullible"].by_attack["refusal with the gold"] == 1.0
    assert found["gullible"].by_attack["empty"] == 0.0
    assert 0.2 < found["broken"].null < 0.8 and found["broken"].agreement == 1.0  # a null is no wrong verdict
    nothing = check(judge_of(lambda prompt: "Verdict: no", tmp_path / "no")[0])
    assert nothing.kind == "broken" and nothing.false_accept == 0.0 and nothing.false_reject == 1.0
    everything = check(judge_of(lambda prompt: "Verdict: yes", tmp_path / "yes")[0])
    assert everything.kind == "gullible" and everything.false_accept == 1.0


def best(prompt):
    found = fields(prompt)
    marks = [is_right(found["QUESTION"], found[f"ANSWER {name}"]) for name in "AB"]
    return "Verdict: tie" if marks[0] == marks[1] else f"Verdict: {'AB'[marks[1]]}"


def test_judges_of_pairs(tmp_path):
    sound = check(judge_of(best, tmp_path / "a", "pair")[0], limit=3)
    assert sound.kind == "good" and sound.judgements == 3 * len(WRONG)
    first = check(judge_of(lambda prompt: "Verdict: A", tmp_path / "b", "pair")[0], limit=3)
    assert first.kind == "biased" and first.flip == 1.0
    worst = check(
        judge_of(lambda p: f"Verdict: {'AB'['A' in best(p)[9:]]}", tmp_path / "c", "pair")[0], limit=3
    )
    assert worst.kind == "gullible" and worst.false_accept == 1.0


def test_judges_of_scores_and_criteria(tmp_path):
    def rate(prompt):
        found = fields(prompt)
        return f"Score: {9 if is_right(found['QUESTION'], found['ANSWER']) else 2}"

    assert check(judge_of(rate, tmp_path / "a", "quality")[0], limit=4).kind == "good"
    assert check(judge_of(lambda p: "Score: 9", tmp_path / "b", "quality")[0], limit=4).kind == "gullible"
    assert check(judge_of(good, tmp_path / "c", "criteria")[0], limit=4).kind == "good"
    with pytest.raises(ConfigError, match="fields question, answers"):
        check(judge_of(good, tmp_path / "d", "ranking")[0])


def test_labelled_data(tmp_path):
    question = ITEMS[0].question
    rows = [
        {"question": question, "reference": "42", "answer": "42", "label": True},
        {"question": question, "reference": "42", "answer": "43", "label": 1},
        {"question": question, "reference": "42", "chosen": ["42"], "rejected": ["43", "44", "45"]},
        {"question": question, "reference": "42", "chosen": "43", "rejected": "42"},
    ]
    judge, _ = judge_of(good, tmp_path / "a")
    assert labelled_rates(judge, rows) == {"accuracy": 0.5, "null": 0.0, "flip": 0.0, "rows": 4}
    pair, _ = judge_of(best, tmp_path / "b", "pair")
    assert labelled_rates(pair, rows[2:]) == {"accuracy": 0.5, "null": 0.0, "flip": 0.0, "rows": 2}
    silent, _ = judge_of(lambda prompt: "hm", tmp_path / "c")
    assert labelled_rates(silent, rows)["null"] == 1.0
    with pytest.raises(ConfigError, match="record 0 has"):
        labelled_rates(judge, [{"text": "x"}])


def test_the_command(tmp_path):
    plugin = tmp_path / "my_judges.py"
    plugin.write_text(
        "import re\n"
        "from dataclasses import dataclass\n"
        "from vlrl.engine.fake import Fake\n"
        "from vlrl.plugins.registry import register\n"
        "@register('my_judge')\n"
        "@dataclass(frozen=True)\n"
        "class MyJudge(Fake):\n"
        "    needs_policy = False\n"
        "    def _respond(self, request, index):\n"
        "        return 'Verdict: yes', 0.0\n"
    )
    spec = "{name: judged_answer, judge: {model: mine@1, engine: {name: my_judge}}}"
    words = [
        "base/rl",
        "models/tiny_text",
        "tasks/lab_arithmetic",
        f"rewards.answer={spec}",
        f"plugins=[{plugin}]",
    ]
    done = CliRunner().invoke(app, ["check", *words, "--limit", "2", "--json"])
    report = json.loads(done.stdout)["answer"]
    assert done.exit_code == 1 and report["kind"] == "gullible" and report["false_accept"] == 1.0
    shown = CliRunner().invoke(app, ["check", *words, "--limit", "1"]).stdout
    assert "answer: gullible" in shown and "accepted: near miss 100%" in shown and "calls" in shown
    with pytest.raises(ConfigError, match="no reward of this config has a `judge`"):
        CliRunner().invoke(app, ["check", *words[:3]], catch_exceptions=False)
