"""JudgeRLVR: which candidates are kept, which rows are drawn, what the judge prompt asks."""

from __future__ import annotations

import pytest
from make import group, run
from run_kit import last_step
from tiny import steps, text_run

from vlrl.methods.papers.judgerlvr import KEY, Judgerlvr, JudgerlvrJudgePrompt, JudgerlvrKeepCandidates
from vlrl.plugins.registry import ConfigError
from vlrl.types import Row

HISTORY = {"a": {KEY: {"yes": "4", "no": "5"}}}


def test_only_prompts_with_both_kinds_are_kept():
    parts = run()
    groups = [
        group(1, 0, 0, name="a", texts=["4", "5", "6"], finish=["stop", "stop", "length"]), group(1, 1,
            name="b"), group(0, 0, name="c"),
        group(1, 0, name="d", source=["expert", "policy"]),
    ]  # fmt: skip
    assert JudgerlvrKeepCandidates()(parts, groups) == {"rows": 1.0} and parts.history == HISTORY


def test_only_rows_with_attempts_are_drawn():
    made = Judgerlvr()
    rows = [Row(n, n) for n in "abc"]
    parts = run(rows={"main": rows}, source_weights={}, seed=0, history={})
    made.setup(parts)
    with pytest.raises(ConfigError, match="keep_candidates"):
        made(2)
    parts.history.update(HISTORY)
    assert [row.id for row in made(2)] == ["a", "a"]


@pytest.mark.parametrize("seed", range(5))
def test_one_row_with_attempts_among_many_is_found_in_every_epoch(seed):
    made = Judgerlvr()
    parts = run(
        rows={"main": [Row(str(n), "q") for n in range(40)]},
        source_weights={},
        seed=seed,
        history={"7": HISTORY["a"]},
    )
    made.setup(parts)
    # epochs have orders of their own: up to 78 rows lie between two visits
    assert [row.id for row in made(20)] == ["7"] * 20 and 19 * 40 <= made.state.position <= 20 * 40


def test_the_question_is_about_an_attempt_and_the_answer_is_its_label():
    template = JudgerlvrJudgePrompt()
    parts = run(seed=0, history=HISTORY)
    template.setup(parts)
    seen = {}
    for step in range(20):
        parts.step = step
        prompt = template(Row("a", "2+2?", answer="4", target="4", task="sums", choices=("3",)))
        text = prompt.messages[-1]["content"][0]["text"]
        assert (
            text.startswith("2+2?\nA proposed answer: ")
            and prompt.row.task == "judge"
            and not prompt.row.choices
        )
        seen.setdefault(prompt.row.answer, set()).add(text.split("answer: ")[1][0])
    assert seen == {"yes": {"4"}, "no": {"5"}}
    assert (
        template(Row("b", "1+1?", answer="2", task="sums")).row.task == "sums"
    )  # without candidates the prompt is the usual one
    with pytest.raises(ValueError, match="attempt"):
        JudgerlvrJudgePrompt(ask="{question}")


def test_the_phases_follow_each_other():
    made = text_run(["methods/judgerlvr"], ["data.train.arithmetic.count=6"])
    before = [p.detach().clone() for p in made.policy.model.parameters()]
    assert steps(made, 1)[0]["keep/rows"] > 0 and all(
        bool((a == b).all()) for a, b in zip(before, made.policy.model.parameters())
    )
    made.use(1)
    made.phase_step = 0
    made.enter(1)
    metrics = steps(made, 1)[0]
    assert (
        0 < metrics["reward/judge"] < 1
        and metrics["grad_norm"] > 0
        and {g.row.task for g in last_step(made).groups} == {"judge"}
    )
    assert isinstance(made.prompt_template, JudgerlvrJudgePrompt)
