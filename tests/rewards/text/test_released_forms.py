"""`form`, format rewards of releases, against their regular expressions; `answer_in`, where answers stand."""

from __future__ import annotations

import re
import time

import pytest
from vlrl_rewards.format.tags import Form

from vlrl.config import load
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward

PARTS = ("<think>", r"</think>\s*<answer>", r"\{", r"\[\d+,\s*\d+\]", r"\}", "</answer>")
SEARCHED = re.compile(".*?".join(PARTS), re.DOTALL)
TEXTS = [
    '<think>a</think><answer>{"p": [1, 2]}</answer>',
    "well <think></think> \n <answer>x {[1,2]} y</answer> and more",
    "<think>a</think> so <answer>{[1, 2]}</answer>",
    "<answer>{[1, 2]}</answer><think>a</think>",
    "<think>a</think><answer>{[1, b]}</answer>",
    "<think>a</think><answer>[1, 2]</answer>",
    "<think>a</think><think>b</think>\n<answer>{}{[1, 2]}{}</answer></answer>",
    "",
    "garbage {[1, 2]}",
]


@pytest.mark.parametrize("text", TEXTS)
def test_parts_in_order_are_the_regular_expression(text):
    assert build(Reward, {"name": "form", "parts": PARTS}).score(text) == bool(SEARCHED.search(text))
    whole = build(Reward, {"name": "form", "parts": PARTS, "whole": True})
    assert whole.score(text) == bool(SEARCHED.fullmatch(text))


RIGHT = "<think>\na\n</think>\n<answer>\n4\n</answer>"
RELEASED = {  # GUI-R1 at d43eea2: r1gui.py:82-83; GHPO at af0a7dd: rewards.py:145-147
    "gui_r1": re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>\Z", re.DOTALL),
    "ghpo": re.compile(r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$", re.DOTALL | re.MULTILINE),
}


@pytest.mark.parametrize("preset", RELEASED)
@pytest.mark.parametrize(
    "text",
    [
        RIGHT,
        RIGHT.replace("a", ""),
        RIGHT + RIGHT[22:],
        f"{RIGHT}\nmore",
        f"{RIGHT} more",
        f" {RIGHT}",
        f"so\n{RIGHT}",
        RIGHT.replace("</think>", ""),
        RIGHT[:-9],
        "4",
        "",
    ],
)
def test_a_preset_pays_its_form_as_its_release(preset, text):
    reward = build(Reward, load([f"methods/{preset}"]).tree["rewards"]["format"])
    assert bool(reward.score(text)) == bool(RELEASED[preset].match(text))


def test_long_texts_take_linear_time():
    reward = build(Reward, {"name": "form", "parts": PARTS})
    begun = time.process_time()
    for text in (
        "<think>" * 20_000,
        "</think> " * 20_000 + "<think>",
        PARTS[0] + "</think><answer>" + "{" * 99_999,
    ):
        assert reward.score(text) == 0
    assert time.process_time() - begun < 5  # a bound against hangs


def test_broken_parts_are_refused():
    with pytest.raises(ValueError, match="parts is empty"):
        Form(parts=())
    with pytest.raises(ValueError, match=r"'\(' is no regular expression"):
        Form(parts=("(",))


@pytest.mark.parametrize(
    ("where", "text", "score"),
    [
        ("tags", "<answer>[0, 0, 9, 9]</answer>", 1.0),
        ("tags", "It is [0, 0, 9, 9].", 0.0),
        ("tags", "\\boxed{[0, 0, 9, 9]}", 0.0),
        ("tags", "<answer></answer> [0, 0, 9, 9]", 0.0),
        ("tags", "", 0.0),
        ("box", "\\boxed{[0, 0, 9, 9]}", 1.0),
        ("box", "<answer>[0, 0, 9, 9]</answer>", 0.0),
        ("marked", "\\boxed{[0, 0, 9, 9]}", 1.0),
        ("marked", "<answer>[0, 0, 9, 9]</answer>", 1.0),
        ("marked", "It is [0, 0, 9, 9].", 0.0),
        ("anywhere", "It is [0, 0, 9, 9].", 1.0),
    ],
)
def test_where_an_answer_may_stand(where, text, score):
    assert build(Reward, {"name": "iou", "answer_in": where}).score(text, [0, 0, 9, 9]) == score
