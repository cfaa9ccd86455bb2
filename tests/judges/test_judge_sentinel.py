"""Sentinels: a judge that turns gullible in a run is noticed at the next probe, one that is paid more while
the rule is not, by the gap; a good one never is."""

from __future__ import annotations

import json
import random
import re
from types import SimpleNamespace

import pytest
from judge_kit import judge_of
from test_judge_check import fields
from typer.testing import CliRunner

from vlrl.beside.judge import check_judge
from vlrl.cli.judge import app
from vlrl.config import load
from vlrl.engine.fake import Fake
from vlrl.methods.core.judge_sentinel import (
    ATTACKS,
    beyond_chance,
    drifted,
    probes_of,
    verdicts_by_score,
    verdicts_on,
)
from vlrl.plugins.registry import ConfigError
from vlrl.services.failures import JudgeHackedError
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.step.loop import train_step
from vlrl.training import train
from vlrl.types import Prompt, Row

ENGINE = (
    "engine={name: fake, options: ['<answer>{answer}</answer>', '<answer>1</answer>', "
    "'<answer>step by step</answer>', 'no']}"
)
JUDGE = "{model: judge@1, engine: {name: fake, options: ['Verdict: no']}"


def config(*more, judge="}", sentinel=", every: 2, window: 3"):
    return load(
        ["base/rl", "models/tiny_text", "tasks/lab_arithmetic", "methods/grpo"],
        [
            "policy.tiny={hidden: 32, layers: 1, heads: 2, kv_heads: 1, intermediate: 64}",
            "prompts_per_step=4",
            "group_size=6",
            "sampling.max_tokens=10",
            "max_refill_rounds=1",
            "watch.rollouts_every=0",
            ENGINE,
            f"rewards.judge={{name: judged_answer, judge: {JUDGE}{judge}}}",
            "outcome=arithmetic",
            f"callbacks.judge={{name: judge_sentinel{sentinel}}}",
            *more,
        ],
    )


def session(tmp_path, reply, **words):
    """An open session whose judge replies by a function of (step, the prompt's fields)."""
    run = Session(Plan.of(config(f"output={tmp_path}", **words)))
    run.open()
    run.enter(0)
    run.engine.sync(run.policy)

    def respond(request, index):
        found = fields(request.prompt.messages[-1]["content"])
        return f"Verdict: {reply(run.step, found)}"

    run.rewards["judge"].state.judge.service.engine = Fake(function=respond)
    return run


def honest(step, found):
    answer = re.sub(r"</?answer>", "", found["ANSWER"]).strip()
    return "yes" if answer == found["REFERENCE"] else "no"


def turned(step, found):
    """Honest up to step 5; from then on it takes anything."""
    return "yes" if step >= 5 else honest(step, found)


def hacked_by_phrase(step, found):
    """Accepts a phrase of the policy's from step 4 on, which no probe has."""
    return (
        "yes"
        if step >= 4 and "step by step" in found["ANSWER"].lower() and "<answer>" in found["ANSWER"]
        else honest(step, found)
    )


def test_a_judge_that_turns_gullible_is_noticed_at_the_next_probe(tmp_path, caplog):
    run = session(tmp_path, turned)
    rates = [train_step(run).metrics for _ in range(8)]
    assert [m["judge/false_accepts"] for m in rates if "judge/false_accepts" in m] == [0, 0, 1, 1]
    assert [m["judge/probes"] for m in rates if "judge/probes" in m] == [10] * 4
    (found,) = [r.getMessage() for r in caplog.records if "is hacked" in r.getMessage()]
    assert found.startswith("step 6: the judge of reward 'judge' is hacked: it accepts 10 of 10 answers")
    assert run.callbacks["judge"].state.hacked == {"judge": 6}  # it turned at step 6, which is probed


def test_an_honest_judge_is_never_hacked(tmp_path, caplog):
    run = session(tmp_path, honest)
    metrics = [train_step(run).metrics for _ in range(8)]
    assert not [r for r in caplog.records if "is hacked" in r.getMessage()]
    assert all(m["judge/gap"] == pytest.approx(0, abs=1e-6) for m in metrics)
    assert run.callbacks["judge"].state.hacked == {}


def test_a_score_that_rises_without_the_rule_is_noticed(tmp_path, caplog):
    run = session(tmp_path, hacked_by_phrase)
    metrics = [train_step(run).metrics for _ in range(9)]
    assert all(m.get("judge/false_accepts", 0) == 0 for m in metrics)  # no probe finds it
    (found,) = [r.getMessage() for r in caplog.records if "is hacked" in r.getMessage()]
    assert re.search(r"its score rose by 0\.\d+ in \d steps, and the rule's by -?0\.\d+", found)
    assert 5 <= run.callbacks["judge"].state.hacked["judge"] <= 8


def test_stop_ends_the_run_in_one_line(tmp_path):
    run = session(tmp_path, lambda step, found: "yes", sentinel=", every: 2, on_hacked: stop")
    train_step(run)
    with pytest.raises(JudgeHackedError, match=r"step 2: .* accepts 10 of 10 .*judge check") as error:
        train_step(run)
    assert error.value.exit_code == 77 and "\n" not in str(error.value)


def test_a_whole_run_stops(tmp_path):
    words = [f"output={tmp_path}", "steps=4", "rewards.judge.judge.engine.options=['Verdict: yes']"]
    with pytest.raises(JudgeHackedError, match="step 2"):
        train(config(*words, sentinel=", every: 2, on_hacked: stop"), live=False)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["slot"] for event in events if event["kind"] == "judge_hacked"] == ["judge"]


def test_a_judge_that_says_nothing_accepts_nothing(tmp_path):
    rows = [Row("a", "2+2?", 4), Row("b", "3+3?", 6)]
    silent, _ = judge_of(lambda prompt: "a fine answer", tmp_path / "silent")
    assert verdicts_on(silent, rows, 6, "s", 1) == [None] * 6
    cached, sent = judge_of(lambda prompt: "Verdict: no", tmp_path / "no")
    for step in (1, 2):
        assert verdicts_on(cached, rows, 6, "s", step) == [False] * 6
    assert len(sent) == 2 * len(
        {case.answer + case.item.question for case, _ in probes_of(rows, 6, random.Random("s"))}
    )


def test_judges_of_scores_and_of_pairs(tmp_path):
    rows = [Row("a", "2+2?", 4)]

    def rates(prompt):
        return f"Score: {9 if fields(prompt)['ANSWER'] == '4' else 2}"

    strict, _ = judge_of(rates, tmp_path / "a", template="quality")
    kind, _ = judge_of(lambda prompt: "Score: 9", tmp_path / "b", template="quality")
    assert verdicts_on(strict, rows, 5, "s", 0) == [False] * 5
    assert verdicts_on(kind, rows, 5, "s", 0) == [True] * 5
    assert verdicts_on(kind, [Row("a", "Write.", None)], 5, "s", 0) == [True] * 5
    first, _ = judge_of(lambda prompt: "Verdict: A", tmp_path / "c", template="pair", both_orders=False)
    assert verdicts_on(first, rows, 5, "s", 0) == [False] * 5
    assert verdicts_on(first, [Row("a", "Write.", None)], 5, "s", 0) == []


def test_probes_are_wrong_for_every_gold():
    rows = [Row("a", "Is it?", "yes"), Row("b", "How many?", "1"), Row("c", "Say 'Solution'.", "Solution")]
    for case, _ in probes_of(rows, 300, random.Random(0)):
        assert case.item.reference.casefold() not in case.answer.casefold() and not case.right
    assert {case.attack for case, _ in probes_of(rows, 300, random.Random(0))} == set(ATTACKS)


def test_mistakes(tmp_path):
    for sentinel, said in ((", every: 0", "at least 1"), (", gold: x", "no reward slot")):
        with pytest.raises(ConfigError, match=said):
            Plan.of(config(sentinel=sentinel))
    with pytest.raises(ConfigError, match="no reward asks one"):
        Plan.of(config("rewards.judge=null"))


# --- the last check -----------------------------------------------------------------------------------------


def test_a_run_refuses_or_warns_by_the_last_check(tmp_path, caplog):
    file = tmp_path / "judges.json"
    (tmp_path / "config.yaml").write_text(config().dump())
    done = CliRunner().invoke(
        app, ["check", str(tmp_path / "config.yaml"), "--limit", "1", "--save", str(file)]
    )
    assert done.exit_code == 1 and json.loads(file.read_text())["judge"]["kind"] == "broken"
    with pytest.raises(ConfigError, match=r"says that it is broken: it rejects 100% .*unless_good: warn"):
        Plan.of(config(judge=f", report: {file}}}"))
    run = Session(
        Plan.of(config(f"output={tmp_path / 'run'}", judge=f", report: {file}, unless_good: warn}}"))
    )
    run.open()
    run.enter(0)
    assert any("says that it is broken" in record.getMessage() for record in caplog.records)
    good = json.loads(file.read_text())
    good["judge"] |= {"kind": "good", "findings": []}
    file.write_text(json.dumps(good))
    assert Plan.of(config(judge=f", report: {file}}}"))


def test_a_report_must_be_about_this_judge(tmp_path):
    spec = {"model": "j@1", "engine": {"name": "fake"}, "report": str(tmp_path / "no.json")}
    with pytest.raises(ConfigError, match=r"cannot be read .*--save"):
        check_judge(spec, "rewards.a.judge")
    (tmp_path / "no.json").write_text('{"a": {"model": "other@1", "kind": "good", "template": "pair"}}')
    with pytest.raises(ConfigError, match="says nothing of j@1"):
        check_judge(spec, "rewards.a.judge")


# --- reward models ------------------------------------------------------------------------------------------


def reward_model_session(tmp_path, said):
    """An open session whose reward model says a function of (step, question, response); `arithmetic` is the
    rule."""
    words = [
        "rewards.judge={name: reward_model, model: tiny, squash: sigmoid}",
        "callbacks.judge.gold=arithmetic",
    ]
    run = Session(Plan.of(config(f"output={tmp_path}", *words)))
    run.open()
    run.enter(0)
    run.engine.sync(run.policy)
    run.rewards["judge"].state.model = SimpleNamespace(
        scores=lambda pairs: [said(run.step, prompt.row, text) for prompt, text in pairs]
    )
    return run


def knows(step, row, text):
    return 3.0 if re.sub(r"</?answer>", "", text).strip() == str(row.answer) else -3.0


def test_a_reward_model_that_turns_is_noticed_and_an_honest_one_never(tmp_path, caplog):
    run = reward_model_session(tmp_path / "a", lambda step, *seen: 3.0 if step >= 5 else knows(step, *seen))
    rates = [train_step(run).metrics for _ in range(8)]
    assert [m["judge/false_accepts"] for m in rates if "judge/false_accepts" in m] == [0, 0, 1, 1]
    assert run.callbacks["judge"].state.hacked == {"judge": 6}
    (found,) = [r.getMessage() for r in caplog.records if "is hacked" in r.getMessage()]
    assert found.startswith(
        "step 6: the reward model of reward 'judge' is hacked: it accepts 10 of 10 answers"
    )
    honest_run = reward_model_session(tmp_path / "b", knows)
    rates = [train_step(honest_run).metrics for _ in range(8)]
    assert honest_run.callbacks["judge"].state.hacked == {}
    assert all(m.get("judge/false_accepts", 0) == 0 for m in rates)


def test_a_reward_model_that_pays_a_phrase_is_noticed_by_its_gap(tmp_path, caplog):
    def phrase(step, row, text):
        return 3.0 if step >= 4 and "step by step" in text and "<answer>" in text else knows(step, row, text)

    run = reward_model_session(tmp_path, phrase)
    metrics = [train_step(run).metrics for _ in range(9)]
    assert all(m.get("judge/false_accepts", 0) == 0 for m in metrics)  # no probe has the phrase
    (found,) = [r.getMessage() for r in caplog.records if "is hacked" in r.getMessage()]
    assert re.search(r"its score rose by 0\.\d+ in \d steps, and the rule's by -?0\.\d+", found)


def test_probes_of_a_reward_model_leave_out_rows_without_an_answer(tmp_path):
    run = reward_model_session(tmp_path, knows)
    reward = run.rewards["judge"]
    (message,) = ({"role": "user", "content": "Write."},)
    bare = Prompt(Row("a", "Write.", None), (message,))
    assert verdicts_by_score(reward, [bare], 5, "s", run) == []
    known = Prompt(Row("b", "2+2?", 4), ({"role": "user", "content": "2+2?"},))
    assert verdicts_by_score(reward, [bare, known], 5, "s", run) == [False] * 5


# --- drift --------------------------------------------------------------------------------------------------

# percent of the reward model's score and of the rule, by step: runs of `benchmarks.reward_models` that are
# hacked, in which the score alone does not rise by 0.15
SLOW = {
    "judge 0": (
        "49 47 45 48 53 50 55 56 54 45 55 50 52 55 53 54 57 56 55 58 58 56 59 60",
        "54 48 47 55 55 44 41 43 52 30 32 30 28 32 21 15 16 18 20 23 20 20 14 9",
    ),
    "process 0": (
        "50 42 38 52 46 48 49 54 57 45 42 50 54 51 49 51 56 59 51 56 57 45 50 49",
        "54 49 49 60 59 41 60 53 62 41 50 42 39 43 47 33 38 48 45 48 58 30 38 30",
    ),
    "process 2": (
        "45 45 42 44 52 60 51 48 50 41 47 46 58 57 50 63 52 66 58 52 52 64 45 53",
        "53 50 57 57 55 55 61 60 62 40 51 49 54 56 41 62 40 51 45 45 33 55 30 41",
    ),
}


def percent(text):
    return [int(number) / 100 for number in text.split()]


@pytest.mark.parametrize("name", SLOW)
def test_a_score_that_creeps_up_while_the_rule_falls_is_noticed(name):
    judged, ruled = map(percent, SLOW[name])
    steps = [n for n in range(1, 25) if drifted(judged[:n], ruled[:n], 8, 0.15)]
    assert 16 <= steps[0] <= 20
    up, rule_up = drifted(judged[: steps[0]], ruled[: steps[0]], 8, 0.15)
    assert 0.0375 <= up < 0.15 and rule_up < 0 and up - rule_up >= 0.15
    assert not any(drifted(ruled[:n], judged[:n], 8, 0.15) for n in range(1, 25))  # the rule is not hacked
    together = [(a + b) / 2 for a, b in zip(judged, ruled, strict=True)]
    assert not any(drifted(together[:n], ruled[:n], 8, 0.15) for n in range(1, 25))  # both fall


def test_a_few_accepted_probes_are_no_alarm():
    # of 10 at 0.1: P(X >= 5) = 0.0016, P(X >= 4) = 0.0128; of 50: P(X >= 11) = 0.0094, P(X >= 10) = 0.0245
    assert [beyond_chance(n, 10, 0.1) for n in (0, 1, 4, 5, 10)] == [False, False, False, True, True]
    assert [beyond_chance(n, 50, 0.1) for n in (5, 10, 11)] == [False, False, True]
    assert beyond_chance(1, 10, 0.0) and not beyond_chance(0, 10, 0.0)  # none is allowed
    assert not beyond_chance(0, 0, 0.1)


def test_what_accepts_a_fifth_is_noticed_over_rounds(tmp_path):
    def one_in_three(step, found):
        number = int(re.sub(r"\D", "", found["REFERENCE"]) or 0)
        return "yes" if (number + len(found["ANSWER"])) % 3 == 0 else "no"

    run = session(tmp_path, one_in_three, sentinel=", every: 1, window: 20")
    rates = [train_step(run).metrics["judge/false_accepts"] for _ in range(8)]
    assert 0.2 < sum(rates) / len(rates) < 0.5
    assert 1 <= run.callbacks["judge"].state.hacked["judge"] <= 5
    assert len(run.callbacks["judge"].state.probed["judge"]) == 5


def test_what_is_no_drift():
    flat, up, down = [0.5] * 8, [0.5, 0.5, 0.6, 0.7], [0.5, 0.5, 0.4, 0.3]
    assert drifted(flat, flat, 2, 0.15) is None
    assert drifted(up[:3], down[:3], 2, 0.15) is None  # less than two windows
    assert drifted(up, up, 2, 0.15) is None
    assert drifted(down, down, 2, 0.15) is None
    assert drifted([0.5] * 4, [0.5, 0.5, 0.1, 0.0], 2, 0.15) is None  # the policy gets worse, unpaid
    assert drifted(up, down, 2, 0.14) == (0.15, -0.15)
    assert drifted(up, flat[:4], 2, 0.14) == (0.15, 0)
    assert drifted(up, flat[:4], 2, 0.16) is None
    assert drifted([0.5, 0.5, 0.54, 0.54], [0.5, 0.5, 0.39, 0.39], 2, 0.15) == (0.04, -0.11)
    assert drifted([0.5, 0.5, 0.54, 0.54], [0.5, 0.5, 0.4, 0.4], 2, 0.15) is None  # 0.14 apart
    assert drifted([0.5, 0.5, 0.53, 0.53], [0.5, 0.5, 0.3, 0.3], 2, 0.15) is None  # rises by less than 0.0375
