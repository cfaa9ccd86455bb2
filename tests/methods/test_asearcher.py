"""ASearcher: the released rules of form, turn by turn, and the penalty for calling a question invalid."""

import pytest

from vlrl.methods.papers.asearcher import Asearcher, well_formed
from vlrl.plugins.episodes import ACTIONS
from vlrl.types import Group, Prompt, Rollout, Row

PROMPT = Prompt(row=Row("a", "q", "Rome"), messages=())
SEARCH, ANSWER = "<think>so</think><search>x</search>", "<think>ok</think><answer>Rome</answer>"


def rollout(*turns, reward=0.8):
    made = Rollout(prompt=PROMPT, ids=[1], text="\n".join(turns), reward=reward)
    ACTIONS.set(made, list(turns))
    return made


def test_score_times_form():
    group = Group(
        PROMPT,
        [
            rollout(SEARCH, ANSWER),
            rollout(SEARCH, "Assistant: " + ANSWER),
            rollout("<search>x</search>" * 2, ANSWER),
        ],
    )
    assert Asearcher()(group) == [0.8, 0.0, 0.0], (
        "one turn that is malformed takes all; two searches in two turns are fine"
    )


def test_behind_a_reply_a_turn_may_end_two_thoughts():
    again = "read</think><think>so</think>"
    assert Asearcher().value(rollout(SEARCH, again + ANSWER.removeprefix("<think>ok</think>"))) == 0.8
    assert Asearcher().value(rollout(SEARCH, again + ANSWER)) == 0.0
    assert Asearcher().value(rollout(again + SEARCH.removeprefix("<think>so</think>"), ANSWER)) == 0.0


@pytest.mark.parametrize(
    ("turn", "right"),
    [
        (SEARCH, True),
        ("", True),
        ("<think>", True),
        ("<search>x", False),
        ("<access>x</access></search>", False),
        ("<access>x</access><answer>y</answer>", False),
        ("a</think>b</think>", False),
        ("the assistant", False),
    ],
)
def test_form_of_a_turn(turn, right):
    assert well_formed(turn) is right


@pytest.mark.parametrize("answer", ["the question is invalid.", "not a valid one", "nothing appropriate"])
def test_calling_the_question_invalid_is_refused(answer):
    assert Asearcher().value(rollout(SEARCH, f"<answer>{answer}</answer>")) == -0.5
    assert Asearcher().value(rollout(f"<answer>{answer}</answer>", "<answer>Rome</answer>")) == 0.8, (
        "the last answer counts"
    )
    assert Asearcher().value(rollout("no answer", reward=0.0)) == 0.0
