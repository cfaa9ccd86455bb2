"""Loong: a question is kept where its program runs, and its answer is what the program returns."""

from dataclasses import replace

import pytest
from tiny import text_run

from vlrl.methods.papers.loong import Loong
from vlrl.trainer.views import StepView

pytestmark = pytest.mark.needs("bwrap")


def writing(body, question="What is 2+3?"):
    return f"{question}\n```python\ndef f():\n    {body}\n```"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (writing("return 2 + 3"), "5"),
        (writing("return 'five'"), "five"),
        (writing("return 1 / 0"), None),
        (writing("import random\n    return random.random()"), None),
        (writing("return [5]"), None),
        (writing("return 5", question=""), None),
        ("What is 2+3? It is 5.", None),
    ],
)
def test_a_program_must_give_an_answer(text, answer):
    row = replace(text_run([]).rows["arithmetic"][0], task="arithmetic")
    made = Loong().made(row, 0, text)
    assert (made and (made.question, made.answer, made.task)) == (
        answer and ("What is 2+3?", answer, "arithmetic")
    )


def test_new_questions_are_solved_and_verified():
    run = text_run([], ["group_size=2", "max_prompt_tokens=4096", "rewards.format=null"])

    def say(request, index):
        if "Write one new question" in request.prompt.text:
            return writing("return 2 + 3")
        return f"<answer>{5 if index else 4}</answer>"

    run.engine = replace(run.engine, function=say)
    run.engine.setup(run)
    strategy = Loong()
    strategy.setup(run)
    view = StepView.between_steps(run)
    made = strategy([run.prompt_template(run.rows["arithmetic"][0])], [2], view)[1]
    view.score([made])
    assert made.row.question == "What is 2+3?" and [rollout.correct for rollout in made] == [False, True]
    assert strategy.state.counts == {"written": 1, "valid": 1}
    with pytest.raises(ValueError, match="at least 1"):
        Loong(questions=0)
