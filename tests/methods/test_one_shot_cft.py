"""One-shot CFT: critiques are kept where their verdict is right."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tiny import text_run

from vlrl.methods.papers.one_shot_cft import OneShotCft, OneShotCftFirst
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.views import StepView
from vlrl.types import Row


def test_verdicts():
    strategy = OneShotCft()
    assert strategy.said("It adds up. Conclusion: right [END]") is True
    assert strategy.said("Conclusion: right? No. Conclusion: WRONG") is False
    assert strategy.said("I cannot say") is None and strategy.said("Conclusion: perhaps") is None


def test_critiques_with_the_wrong_verdict_are_dropped():
    run = text_run([], ["group_size=2", "max_prompt_tokens=4096", "rewards.format=null"])
    run.engine = replace(
        run.engine,
        function=lambda request, index: (
            f"<answer>{request.prompt.row.answer if index == 0 else 9999}</answer>"
        ),
    )
    run.engine.setup(run)
    strategy = OneShotCft(teachers={"kind": {"name": "fake"}})
    strategy.setup(run)

    def praise(requests):
        for request in requests:
            yield SimpleNamespace(request=request, text="Fine. Conclusion: right")

    strategy.state.teachers[:] = [SimpleNamespace(generate=praise)]
    prompt = run.prompt_template(run.rows["arithmetic"][0])
    right, wrong = strategy([prompt], [2], StepView.between_steps(run))
    (kept,) = right.rollouts
    assert kept.source == "expert" and kept.text.endswith("Conclusion: right") and not wrong.rollouts
    assert prompt.row.question in right.prompt.text and str(prompt.row.answer) in right.prompt.text
    assert strategy.state.counts == {"critiques": 2, "kept": 1}


def test_a_teacher_and_a_row_are_needed():
    with pytest.raises(ConfigError, match="none is named"):
        OneShotCft().check(SimpleNamespace())
    rows = [Row("a", "?"), Row("b", "?")]
    assert OneShotCftFirst(place=1)(rows) == rows[1:]
    with pytest.raises(ConfigError, match="no row 2"):
        OneShotCftFirst(place=2)(rows)
