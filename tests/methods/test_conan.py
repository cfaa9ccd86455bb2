"""Conan's joint reward and its choice of rows by hand."""

import pytest

from vlrl.methods.papers.conan import Conan, ConanDifficulty, ConanTemplate, evidence_difficulty, well_formed
from vlrl.plugins.episodes import ACTIONS, CONVERSATION, SEGMENT, TURN_PARTS
from vlrl.plugins.registry import ConfigError
from vlrl.types import Group, Prompt, Rollout, Row

PROMPT = Prompt(Row("a", "q", "B"), ())
ASKS = "<score>00:00:01: 5</score><think>so</think><clip>00:00:02</clip><answer></answer>"
ANSWERS = "<score></score><think>so</think><clip></clip><answer>B</answer>"


def rollout(*turns, outcome=1.0, parts=None, conversation=0, segment=0):
    made = Rollout(PROMPT, [1], "\n".join(turns), outcome=outcome, correct=outcome >= 1)
    ACTIONS.set(made, list(turns))
    TURN_PARTS.set(made, dict(parts or {}))
    CONVERSATION.set(made, conversation)
    SEGMENT.set(made, segment)
    return made


def test_the_joint_reward():
    parts = {"identified": 1.5, "identified_rounds": 2.0, "retrieved": 0.25, "retrieved_rounds": 1.0}
    value = Conan().value
    assert value(rollout(ASKS, ANSWERS, parts=parts)) == pytest.approx(0.5 + 1 + 0.75 + 0.25)
    assert value(rollout(ASKS, ANSWERS, parts=parts, outcome=0.0)) == 0.5, (
        "what is found for a wrong answer is not paid"
    )
    assert value(rollout(ANSWERS, parts={"identified": 0.5, "identified_rounds": 1.0})) == pytest.approx(
        0.5 + 1 + 0.5 + 0.5
    )
    assert value(rollout(ANSWERS, parts={})) == 1.5, "no ratings"
    assert (
        value(rollout("B", parts=parts)) == pytest.approx(1 + 0.75 + 0.25)
        and value(rollout("C", outcome=0.0)) == 0.0
    )
    assert value(rollout(ANSWERS, outcome=0.3)) == pytest.approx(0.8), "a graded outcome"


def test_all_rollouts_of_a_conversation_have_the_last_ones_reward():
    first, last = rollout(ASKS, ANSWERS, outcome=0.0), rollout(ASKS, ANSWERS, segment=1)
    other = rollout("C", outcome=0.0, conversation=1)
    assert Conan()(Group(PROMPT, [first, last, other])) == [1.5, 1.5, 0.0]


@pytest.mark.parametrize(
    "turn",
    [
        "",
        ANSWERS.replace("<answer>B", "<answer>"),
        ASKS.replace("<answer>", "<answer>B"),
        ANSWERS + ANSWERS,
        ANSWERS + "<answer>C</answer>",
        ANSWERS.replace("<clip></clip>", ""),
        "<think>so</think><score></score><clip></clip><answer>B</answer>",
        "<score><think>so</think></score><clip></clip><answer>B</answer>",
        ANSWERS.replace("</think>", ""),
        ANSWERS.replace("<answer>B", "<answer> \n "),
    ],
)
def test_malformed_turns(turn):
    assert well_formed(ASKS) and well_formed(f" {ANSWERS}\n") and not well_formed(turn)


def test_evidence_difficulty_by_hand():
    """Places 0 and 1 of five frames: variance 1/4, three fifths are no evidence."""
    assert evidence_difficulty([5, 1, 3, 1, 4]) == pytest.approx(0.6 * 0.25)
    assert (
        evidence_difficulty([1, 3, 3]) == 0.0
        and evidence_difficulty([5]) == 0.0
        and evidence_difficulty([5, 5]) == 0.0
    )


def test_rows_by_difficulty():
    scores = ([5, 1, 1, 1, 5], [1, 5, 5, 1, 1], [5, 1, 5, 1, 1], [1, 1, 5, 1, 1])
    rows = [
        Row(str(i), "q", meta={"frame_scores": s, "turns": ["x"] * (i % 2 + 1)}) for i, s in enumerate(scores)
    ]
    assert [row.id for row in ConanDifficulty(high=0.5)(rows)] == ["1", "3"] and [
        row.id for row in ConanDifficulty(low=0.5)(rows)
    ] == ["0", "2"]
    assert [row.id for row in ConanDifficulty(rounds=1)(rows)] == ["0", "2"]
    with pytest.raises(ConfigError, match="frame_scores"):
        ConanDifficulty()([Row("x", "q")])
    with pytest.raises(ValueError, match="low"):
        ConanDifficulty(low=0.7, high=0.3)


def test_the_prompt_has_no_video():
    row = Row("a", "<video>\nWhich colour?", "B", videos=("film",))
    prompt = ConanTemplate()(row)
    assert prompt.videos == () and prompt.row is row and prompt.text == "Which colour?"
