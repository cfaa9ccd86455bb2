"""Format rewards: right, wrong, garbage, empty, adversarial."""

import pytest

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward

GOOD = "<think>two and two</think><answer>4</answer>"


@pytest.mark.parametrize(
    ("spec", "text", "score"),
    [
        ({"name": "think_format"}, GOOD, 1),
        ({"name": "think_format"}, "<think></think><answer>4</answer>", 0),
        ({"name": "think_format"}, "<think>a</think>", 0),
        ({"name": "think_format"}, "<think>a</think>b<think>c</think>d", 0),
        ({"name": "think_format"}, "4", 0),
        ({"name": "think_format"}, "", 0),
        ({"name": "think_format", "mode": "no_think"}, "<answer>4</answer>", 1),
        ({"name": "think_format", "mode": "no_think"}, "<think>\n\n</think>\n\n4", 1),
        ({"name": "think_format", "mode": "no_think"}, GOOD, 0),
        ({"name": "think_format", "mode": "no_think"}, "...", 0),
        ({"name": "form"}, f"So: {GOOD}!", 1),
        ({"name": "form"}, "<think>two</think> 4 <answer>4</answer>", 0),
        ({"name": "form", "whole": True}, GOOD, 1),
        ({"name": "form", "whole": True}, f"{GOOD}!", 0),
        ({"name": "form", "once": ["<answer>"]}, GOOD, 1),
        ({"name": "form", "once": ["<answer>"]}, f"{GOOD}<answer>5</answer>", 0),
        ({"name": "form", "once": ["<answer>", "<think>"]}, f"<think>{GOOD}", 0),
        ({"name": "form", "parts": ["4"], "once": ["\n"]}, "4", 0),  # none at all is not once
        ({"name": "form", "parts": ["4"], "once": ["\n"]}, "so\n4", 1),
        ({"name": "tag_count"}, GOOD, 1),
        ({"name": "tag_count"}, "<think>a</think>4", 0.5),
        ({"name": "tag_count"}, "<think>a</think><answer>4", 0.75),
        ({"name": "tag_count"}, "<think></think><answer></answer>", 0),
        ({"name": "tag_count"}, "<think>a<think>a</think><answer>4</answer>", 0.75),
        ({"name": "tag_count"}, "", 0),
        ({"name": "boxed_format"}, r"so \boxed{4}", 1),
        ({"name": "boxed_format"}, r"\boxed{4} \boxed{5}", 0),
        ({"name": "boxed_format"}, r"<think>\boxed{4}</think>4", 0),
        ({"name": "boxed_format"}, r"\boxed{}", 0),
        ({"name": "boxed_format"}, "", 0),
        ({"name": "json_format"}, '<answer>{"a": 1}</answer>', 1),
        ({"name": "json_format"}, '<think>{"a": 1}</think>', 0),
        ({"name": "json_format"}, "{}", 0),
        ({"name": "json_format"}, '{"a": 1} {"a": 2}', 0),
        ({"name": "json_format"}, "[" * 5000, 0),
        ({"name": "json_format"}, "", 0),
        ({"name": "language"}, "This is what we think of it.", 1),
        ({"name": "language", "language": "zh"}, "This is English.", 0),
        ({"name": "language"}, "Le chat est dans la maison.", 0),
        ({"name": "language"}, "The answer is 四四四四四四", 11 / 17),
        ({"name": "language"}, "123", 0),
        ({"name": "language"}, "", 0),
        ({"name": "repetition", "n": 2}, "a b c d", 0),
        ({"name": "repetition", "n": 2}, "a b a b a b", -0.6),
        ({"name": "repetition"}, "spam " * 103, -0.99),
        ({"name": "repetition"}, "", -1),
    ],
)
def test_scores(rollout, spec, text, score):
    assert build(Reward, spec)(rollout("4", text)) == pytest.approx(score)


def test_mode_by_row(rollout):
    reward = build(Reward, {"name": "think_format", "mode": "row"})
    assert reward(rollout("4", GOOD, meta={"think": True})) == 1
    assert reward(rollout("4", GOOD, meta={"think": False})) == 0
    assert reward(rollout("4", "4", meta={"think": False})) == 1


SCHEMA = {
    "type": "object",
    "required": ["n"],
    "additionalProperties": False,
    "properties": {
        "n": {"type": "integer", "minimum": 1, "maximum": 5},
        "s": {"enum": ["a", "b"]},
        "l": {"type": "array", "maxItems": 1, "items": {"type": "string", "maxLength": 2}},
    },
}


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"n": 2}', 1),
        ('{"n": 2, "s": "a", "l": ["xy"]}', 1),
        ('{"n": 9}', 0),
        ('{"n": true}', 0),
        ('{"n": 2, "z": 1}', 0),
        ('{"s": "a"}', 0),
    ]
    + [
        ('{"n": 2, "s": "c"}', 0),
        ('{"n": 2, "l": ["a", "b"]}', 0),
        ('{"n": 2, "l": ["abc"]}', 0),
        ("[1]", 0),
    ],
)
def test_json_schema(rollout, text, score):
    assert build(Reward, {"name": "json_format", "schema": SCHEMA})(rollout("", text)) == score


def test_unknown_schema_keyword():
    with pytest.raises(ConfigError, match="patternProperties"):
        build(Reward, {"name": "json_format", "schema": {"patternProperties": {}}})
