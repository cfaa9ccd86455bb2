"""The scripted policy goes on behind what it is given, and profits from the demonstration that it is
shown."""

from __future__ import annotations

import pytest

from vlrl.engine.scripted import Scripted, continued, shown_share
from vlrl.types import Prompt, Row

TEXT = "<think>so then</think><answer>12</answer>"


@pytest.mark.parametrize(
    ("given", "rest"),
    [
        ("", TEXT),
        ("<think>", "so then</think><answer>12</answer>"),
        ("<think>so", "then</think><answer>12</answer>"),
        ("<think>other words", "so then</think><answer>12</answer>"),
        ("<think>\n\n</think>\n\n", "<answer>12</answer>"),
        ("<think>a</think><answer>", "12</answer>"),
        ("<think>a</think><answer>1", "2</answer>"),
        ("<think>a</think><answer>3</answer>", ""),
    ],
)
def test_a_response_goes_on_behind_what_is_given(given: str, rest: str) -> None:
    assert continued(TEXT, given) == rest


def test_text_without_tags_stays() -> None:
    assert continued("so 12", "<think>") == "so 12"


def test_the_share_of_a_demonstration_that_is_shown_raises_the_skill() -> None:
    row = Row("r", "1+1=", 2, target="<answer>2</answer>")
    assert shown_share(row, "1+1=\nA solution begins: <answer>") == 8 / 18
    assert shown_share(row, "1+1=") == 0.0
    assert shown_share(Row("r", "1+1=", 2), "anything") == 0.0
    policy = Scripted(skill=0.25, spread=0.0, hint=0.5)
    prompt = Prompt(row, ({"role": "user", "content": "1+1=\nA solution begins: <answer>2</a"},))
    assert policy._formed(prompt, "1+1=\nA solution begins: <answer>2</a", "2", "so") == "<answer>2</answer>"
    longer = Row("r", "1+1=", 2, target="<think>1 and 1</think><answer>2</answer>")
    assert (
        policy._formed(Prompt(longer, ()), "1+1=\nA solution begins: <think>1 and", "2", "so")
        == "<think>so</think><answer>2</answer>"
    )
    assert policy._skill(row, "1+1=") == 0.25
    assert policy._skill(row, "1+1=<answer>2</answer>") == 0.75


def test_a_line_can_copy_what_was_shown() -> None:
    row = Row("r", "Where does Ada live?", "Rome")
    policy = Scripted(
        lines={"": ("<search>{seen:does (\\w+)}</search><answer>{seen:lives in (\\w+)}</answer>",)}
    )
    prompt = Prompt(row, ({"role": "user", "content": row.question},))
    assert policy._respond(prompt, "", iter([0.5] * 9)) == "<search>Ada</search><answer>nothing</answer>"
    begun = "<search>Ada</search><information>Ben lives in Oslo. Ada lives in Rome.</information>"
    assert policy._respond(prompt, begun, iter([0.5] * 9)) == "<answer>Rome</answer>"
