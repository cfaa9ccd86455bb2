"""Questions that the policy's own words become: what is asked, what it is worth, what is learned from. A fake
engine speaks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from make import group, run
from tiny import text_run
from vlrl_rewards.combine.solve_rate import SolveRate

from vlrl.methods.common.prompts import derived_row, neutralised
from vlrl.methods.papers.rise import Rise
from vlrl.methods.papers.svs import SOLVE_RATE, Svs
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.views import StepView
from vlrl.types import Row


def speaking(method, words, function):
    """A run whose engine says function(request, index)."""
    made = text_run([f"methods/{method}"], ["num_minibatches=1", *words])
    made.engine = replace(made.engine, function=function)
    made.engine.setup(made)
    return made


def test_words_of_a_model_in_a_question():
    assert neutralised(" <image>a<|im_end|> b <video>") == "a< |im_end|> b"
    row = Row("r", "q", answer=1, choices=("a",), target="t", task="old", rewards=("x",), meta={"k": 1})
    made = derived_row(row, "s", "new?", 2, "task")
    assert (made.id, made.question, made.answer, made.task, made.rewards, made.choices, made.target) == (
        "r/s",
        "new?",
        2,
        "task",
        (),
        (),
        "",
    )
    assert made.meta == {"k": 1} and row.id == "r"


def test_rise_asks_for_the_score_that_a_solution_got():
    def say(request, index):
        row = request.prompt.row
        return (
            f"<answer>{index % 2}</answer>"
            if row.task == "verification"
            else f"<answer>{row.answer if index else 'x<image>'}</answer>"
        )

    made = speaking("rise", ["rollout.share=1", "group_size=4", "max_prompt_tokens=4096"], say)
    prompts = [made.prompt_template(made.rows["arithmetic"][i]) for i in range(3)]
    groups = made.rollout(prompts, [4, 4, 4], StepView.between_steps(made))
    solved, verdicts = groups[:3], groups[3:]
    assert (
        [g.row.id for g in solved] == [p.row.id for p in prompts]
        and len(verdicts) == 3
        and all(len(g) == 4 for g in verdicts)
    )
    for verdict in verdicts:
        source, _, place = verdict.row.id.rpartition("/verify-")
        assert verdict.row.task == "verification" and verdict.row.answer == (
            "0" if place == "0" else "1"
        )  # the first sample of each was wrong
        given = next(g.row for g in solved if g.row.id == source)
        assert given.question in verdict.row.question and "<image>" not in verdict.row.question
        assert f"<answer>{'x' if place == '0' else given.answer}</answer>" in verdict.row.question
    StepView.between_steps(made).score(verdicts)
    assert [r.rewards["verification"] for r in verdicts[0]] == (
        [1, 0, 1, 0] if verdicts[0].row.answer == "0" else [0, 1, 0, 1]
    )
    assert all("arithmetic" not in r.rewards for g in verdicts for r in g)
    again = [g.row.id for g in made.rollout(prompts, [4, 4, 4], StepView.between_steps(made))[3:]]
    assert again == [g.row.id for g in verdicts]  # drawn by seed, step and rank
    made.close()


def test_rise_draws_what_is_left_of_a_share_by_chance():
    made = speaking(
        "rise", ["rollout.share=0.5", "group_size=2"], lambda request, index: "<answer>1</answer>"
    )
    prompts, found = [made.prompt_template(made.rows["arithmetic"][0])], []
    for made.step in range(20):
        found.append(len(made.rollout(prompts, [2], StepView.between_steps(made))) - 1)
    assert set(found) == {0, 1} and 4 <= sum(found) <= 16
    made.phases = [
        replace(made.current, settings=replace(made.settings, max_prompt_tokens=10))
    ]  # nothing fits
    assert len(made.rollout(prompts * 4, [2] * 4, StepView.between_steps(made))) == 4
    made.close()


def test_svs_writes_problems_out_of_right_solutions_and_solves_them():
    """The second of three prompts is right in 2 of 4: two right solutions, two variants each, of which one is
    no problem."""

    def say(request, index):
        row = request.prompt.row
        if row.task == "synthesis":
            return (
                f"```no</think> well:\n```text\nvariant <|of|> it {index}\n``` so ```text\nlater```"
                if index == 0
                else "no idea ```text"
            )
        right = {0: 0, 1: 2, 2: 4}[int(row.id.partition("/")[0][-1])] if "/" not in row.id else 1
        return f"<answer>{row.answer if index < right else 'x'}</answer>"

    made = speaking("svs", ["rollout.variants=2", "group_size=4", "rollout.high=0.5"], say)
    rows = [replace(made.rows["arithmetic"][i], id=f"row{i}", answer=str(i)) for i in range(3)]
    groups = made.rollout(
        [made.prompt_template(row) for row in rows], [4, 4, 4], StepView.between_steps(made)
    )
    assert [g.row.id for g in groups] == [
        "row0",
        "row1",
        "row2",
        "row1/write-0",
        "row1/write-1",
        "row1/write-0-0",
        "row1/write-1-0",
    ]
    written, solved = groups[3:5], groups[5:]
    assert all(g.row.task == "synthesis" and "<answer>1</answer>" in g.row.question for g in written)
    assert all(
        g.row.question == "variant < |of|> it 0"
        and g.row.answer == "1"
        and g.row.task == "arithmetic"
        and len(g) == 4
        for g in solved
    )
    assert [[SOLVE_RATE[r] for r in g] for g in written] == [[0.25, 0.0], [0.25, 0.0]]
    made.rollout.end_step(made)
    assert made.rollout.metrics() == {"svs/writing": (2.0, 0.0), "svs/problems": (2.0, 0.0)}
    assert Svs().problem("a ```\nplain\n``` b") == "plain" and Svs().problem(
        "```text\nx```</think> none"
    ) == "" == Svs().problem("")
    assert Svs().problem("a ```text\nopen") == "open" == Svs().problem("</think>```open")  # split("```")[0]
    StepView.between_steps(made).score(groups)
    assert (
        written[0].rewards == [1.0, 0.0]
        and [r.correct for r in written[0]] == [True, False]
        and max(solved[0].rewards) <= 1.1
    )
    made.close()


@pytest.mark.parametrize(("rate", "paid"), [(0.0, 0.0), (0.125, 1.0), (0.625, 1.0), (0.75, 0.0), (1.0, 0.0)])
def test_middling_problems_are_paid(rate, paid):
    assert SolveRate()(group(0.3, info=[{SOLVE_RATE.name: rate}]).rollouts[0]) == paid


def test_what_cannot_work_is_refused():
    class Slot:
        tasks = ("arithmetic",)

    with pytest.raises(ConfigError, match="no reward scores"):
        Rise().check(run(rewards={"a": Slot()}))
    with pytest.raises(ConfigError, match="no reward scores"):
        Svs().check(run(rewards={"a": Slot()}))
    with pytest.raises(ConfigError, match="requires 'svs.solve_rate'.*rollout: .name: svs"):
        text_run(["methods/svs"], ["rollout={name: independent}"])
    for broken in (
        lambda: Rise(share=0),
        lambda: Rise(ask="?"),
        lambda: Svs(low=0.0),
        lambda: Svs(ask="?"),
        lambda: SolveRate(low=0.9),
    ):
        with pytest.raises(ValueError, match="must|needed"):
            broken()
