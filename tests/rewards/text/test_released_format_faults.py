"""Faults of released format, repetition and yes/no rewards; each is shown not to be ours."""

import pytest
from vlrl_rewards import verify

from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward

PROSE = "the cat sat on the mat and " * 20
JSON = '```json\n[{"bbox_2d": [1, 2, 3, 4], "label": "cat"}]\n```'


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("Perception-R1: a text that starts with '<' is well formed", "<"),
        (
            "VLM-R1: the format is searched for, so anything may stand around it",
            "first <think>a</think> <answer>b</answer> then",
        ),
        ("VLM-R1: tags may be nested", "<think><think>a</think></think><answer>b</answer>"),
        ("VLM-R1: an answer may come twice", "<think>a</think><answer>b</answer><answer>c</answer>"),
        ("Video-R1: nothing may stand in the tags", "<think></think><answer></answer>"),
    ],
)
def test_only_the_whole_format_counts(rollout, fault, text):
    assert build(Reward, "tag_format")(rollout("b", text)) == 0.0, fault
    assert build(Reward, "tag_format")(rollout("b", "<think>a</think>\n<answer>b</answer>")) == 1.0


def test_the_right_format_is_reached(rollout):
    """BTL-UI's and R1-SGG's released format rewards are 0 for every text."""
    assert (
        build(Reward, {"name": "tag_format", "tags": ["blink", "think", "link"]})(
            rollout("", "<blink>[[1, 2, 3, 4]]</blink><think>a</think><link>b</link>")
        )
        == 1
    )
    assert (
        build(Reward, "json_format")(
            rollout("", '{"objects": [{"id": "man.1"}], "relationships": [{"subject": "man.1"}]}')
        )
        == 1
    )


def test_a_list_does_not_hide_repetition(rollout):
    """VLM-R1 counts only the members of a JSON list, where there is one, and not the words around it."""
    reward = build(Reward, "repetition")
    assert (
        reward(rollout("", PROSE + JSON)) < -0.7 < -0.3 < reward(rollout("", "Here is what I found. " + JSON))
    )


def test_neither_yes_nor_no_is_no_agreement():
    """VLM-R1 gives 1.0 where neither side says yes or no."""
    for said in ("maybe", "I like turtles", ""):
        assert not verify("yes", said, "yes_no").correct and not verify("no", said, "yes_no").correct
    with pytest.raises(ValueError, match="gold"):
        verify("turtles", "turtles", "yes_no")
