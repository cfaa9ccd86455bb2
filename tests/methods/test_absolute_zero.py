"""Absolute Zero: proposals that are run, tasks that are made of them, answers that are checked by
execution."""

from dataclasses import replace

import pytest
from tiny import text_run
from vlrl_rewards.code.triplets import SOLVED, TripletReward, arguments_in, proposed

from vlrl.methods.papers.absolute_zero import AbsoluteZero, AbsoluteZeroAdvantage
from vlrl.trainer.views import StepView
from vlrl.types import Group, Prompt, Rollout, Row

pytestmark = pytest.mark.needs("bwrap")
TRIPLE = "```python\ndef f(x):\n    return x * 3\n```\n```input\n4\n```"


def rollout_of(text, **meta):
    return Rollout(Prompt(Row("1", "?", meta=meta), ()), [1], text=text)


def test_a_proposal_is_run():
    made = proposed(TRIPLE)
    assert (made.arguments, made.output) == ([4], "12") and "return x * 3" in made.program


@pytest.mark.parametrize(
    "text",
    [
        "no blocks",
        TRIPLE.replace("```input\n4\n```", ""),
        TRIPLE.replace("4\n", "g(4)\n"),
        TRIPLE.replace("x * 3", "x / 0"),
        TRIPLE.replace("x * 3", "random.random()"),
        TRIPLE.replace("def f(x)", "def g(x)"),
    ],
)
def test_what_cannot_be_run_is_no_proposal(text):
    assert proposed(text) is None


def test_arguments():
    assert arguments_in("1, 'a', [2]") == [1, "a", [2]] and arguments_in("4") == [4]
    with pytest.raises(ValueError, match="not a value"):
        arguments_in("open('x')")


def test_proposers_are_paid_for_tasks_that_are_neither_trivial_nor_impossible():
    reward = TripletReward()
    for solved, paid in ((0.25, 0.75), (1.0, 0.0), (0.0, 0.0)):
        rollout = rollout_of(TRIPLE, role="propose")
        SOLVED.set(rollout, solved)
        assert reward(rollout) == paid
    for text, paid in ((TRIPLE, -0.5), ("nothing", -1.0)):
        rollout = rollout_of(text, role="propose")
        SOLVED.set(rollout, -1.0)
        assert reward(rollout) == paid


def test_solvers_are_checked_by_execution():
    reward, program = TripletReward(), "def f(x):\n    return abs(x)"
    deduction = {"role": "deduction", "program": program, "output": "[1, 2]"}
    abduction = {"role": "abduction", "program": program, "output": "3"}
    induction = {"role": "induction", "cases": [[[2], "2"], [[-5], "5"]]}
    for text, meta, paid in (
        ("<answer>[1,2]</answer>", deduction, 1.0),
        ("<answer>[1, 3]</answer>", deduction, -0.5),
        ("", deduction, -1.0),
        ("<answer>-3</answer>", abduction, 1.0),  # another input than the proposer's
        ("<answer>2</answer>", abduction, -0.5),
        (f"```python\n{program}\n```", induction, 1.0),
        ("```python\ndef f(x):\n    return x\n```", induction, -0.5),
    ):
        assert reward(rollout_of(text, **meta)) == paid, text


def test_a_baseline_for_each_role_and_kind():
    def group(task, *rewards):
        prompt = Prompt(Row(task, "?", task=task), ())
        return Group(prompt, [Rollout(prompt, [1], reward=value) for value in rewards])

    groups = [group("deduction", 1.0), group("propose_deduction", 0.0, 0.5), group("deduction", 0.0)]
    found = AbsoluteZeroAdvantage()(groups)
    assert found[0][0] == -found[2][0] > 0 and found[1][1] == -found[1][0] > 0
    assert AbsoluteZeroAdvantage()([group("deduction", 1.0)]) == [[0.0]]


def test_tasks_are_made_of_valid_proposals_and_solved():
    run = text_run([], ["group_size=2", "max_prompt_tokens=4096", "sampling.max_tokens=128"])

    def say(request, index):
        row = request.prompt.row
        if row.meta["role"] == "propose":
            return TRIPLE if index == 0 else "no task"
        return f"<answer>{12 if index < 3 else 5}</answer>"

    run.engine = replace(run.engine, function=say)
    run.engine.setup(run)
    strategy = AbsoluteZero(solves=4)
    strategy.setup(run)
    run.current.rewards.clear()
    run.current.rewards["triplet"] = TripletReward()
    prompt = run.prompt_template(
        Row("s", "Propose.", task="selfplay", meta={"kind": "deduction", "role": "propose"})
    )
    proposals, solved = strategy([prompt], [2], StepView.between_steps(run))
    assert [SOLVED[rollout] for rollout in proposals] == [0.75, -1.0]
    assert solved.row.task == "deduction" and "f(4)" in solved.row.question and len(solved) == 4
    assert strategy.state.buffer["deduction"] == [
        {"program": "def f(x):\n    return x * 3", "arguments": [4], "output": "12"}
    ]
    assert strategy.state.counts == {"proposals": 2, "valid": 1}


def test_sizes_must_be_positive():
    with pytest.raises(ValueError, match="at least 1"):
        AbsoluteZero(solves=0)
