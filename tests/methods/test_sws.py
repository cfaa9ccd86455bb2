"""SwS: what counts as weak, what is written of it, and which problems are kept."""

from dataclasses import replace

import pytest
from make import group
from run_kit import View
from tiny import text_run

from vlrl.methods.papers.sws import KEY, Sws, SwsAugment, is_weak
from vlrl.trainer.views import StepView


@pytest.mark.parametrize(
    ("visits", "weak"),
    [
        ([], False),
        ([0.2], True),
        ([0.1, 0.4], False),
        ([0.4, 0.1], True),
        ([0.2, 0.9], False),
        ([0.6], False),
    ],
)
def test_rows_that_stay_low_are_weak(visits, weak):
    assert is_weak(visits, 0.5) is weak


def test_every_visit_is_recorded():
    view = View(answered_groups=[group(1.0, 0.0, name="a"), group(0.0, 0.0, name="b")])
    assert Sws()(view, []) == {"weak": 1.0}
    Sws()(view, [])
    assert view.history == {"a": {KEY: [0.5, 0.5]}, "b": {KEY: [0.0, 0.0]}}


def test_problems_of_weak_rows_are_labelled_by_the_majority():
    run = text_run([], ["group_size=4", "max_prompt_tokens=4096", "rewards.format=null"])
    votes = {"new A": ["5", "5", "6", "5"], "new B": ["7", "7", "7", "7"]}
    first, second, third = (run.rows["arithmetic"][i] for i in range(3))

    def say(request, index):
        text, row = request.prompt.text, request.prompt.row
        if "Write one new problem" in text:
            assert first.question in text and second.question in text
            return "new A" if row.id.startswith(f"{first.id}/") else "new B"
        return f"<answer>{votes[row.question][index] if row.question in votes else 0}</answer>"

    run.engine = replace(run.engine, function=say)
    run.engine.setup(run)
    run.history |= {first.id: {KEY: [0.0]}, second.id: {KEY: [0.2]}, third.id: {KEY: [0.9]}}
    strategy = SwsAugment()
    strategy.setup(run)
    prompts = [run.prompt_template(row) for row in (first, second, third)]
    groups = strategy(prompts, [2, 2, 2], StepView.between_steps(run))
    assert len(groups) == 4  # all agree on new B: nothing to learn
    made = groups[3]
    assert (made.row.question, made.row.answer, made.row.task) == ("new A", "5", "arithmetic")
    assert all(rollout.prompt is made.prompt for rollout in made)
    run.current.rewards["arithmetic"].setup(run)
    StepView.between_steps(run).score([made])
    assert [rollout.correct for rollout in made] == [True, True, False, True]
    assert strategy.state.counts == {"written": 2, "kept": 1}
    with pytest.raises(ValueError, match="low"):
        SwsAugment(low=0.9, high=0.1)
