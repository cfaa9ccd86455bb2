"""exact, numeric, tag_format: right, wrong, garbage, empty, adversarial."""

import pytest

from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward


@pytest.mark.parametrize(
    ("gold", "text", "score"),
    [
        ("Paris", "<answer> paris </answer>", 1),
        ("Paris", "<think>Paris</think><answer>London</answer>", 0),
        ("Paris", "<think>Paris</think>", 0),
        ("Paris", "", 0),
        ("Paris", "%$#@", 0),
        ("Paris", "<answer></answer>", 0),
        ("Paris", "<answer>London, Paris</answer>", 0),
        ("Paris", "<answer>London</answer> or <answer>Rome</answer> or <answer>Paris</answer>", 0),
        ("7", "<answer>７</answer>", 1),
        ("Paris", "Paris", 1),
        ("Paris", "<think>Rome</think>\n paris\n", 1),
        ("Paris", "The answer is Paris.", 1),
        ("Paris", "It is Paris", 0),
        ("Paris", "Paris or Rome", 0),
        ("Paris", "Paris Paris", 0),
        ("Paris", "Paris <answer>Rome</answer>", 0),
        ("Paris", "Paris <answer></answer>", 0),
        ("Paris", "Paris? No, it is Rome.", 0),
        (7, "<answer>7</answer>", 1),
    ],
)
def test_exact(rollout, gold, text, score):
    assert build(Reward, "exact")(rollout(gold, text)) == score


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Paris", 1),
        (" Paris\n", 1),
        ("paris", 0),
        ("London", 0),
        ("", 0),
        ("%$#@", 0),
        ("<answer>Paris</answer>", 0),
        ("<think>Rome</think>Paris", 0),
        ("The answer is Paris.", 0),
    ],
)
def test_exact_whole(rollout, text, score):
    """No-Thinking-CLS-RL: the completion is the answer; nothing stands around it."""
    assert build(Reward, {"name": "exact", "whole": True, "case": True})(rollout("Paris", text)) == score


def test_exact_case(rollout):
    assert build(Reward, {"name": "exact", "case": True})(rollout("Paris", "<answer>paris</answer>")) == 0
    with pytest.raises(ValueError, match="gold answer is empty"):
        build(Reward, "exact")(rollout("", "<answer></answer>"))


@pytest.mark.parametrize(
    ("gold", "text", "score"),
    [
        ("7", "<answer>7</answer>", 1),
        (7, "<answer>7.0</answer>", 1),
        ("1,234.5", "<answer>1234.5</answer>", 1),
        (-2000, r"\boxed{-2e3}", 1),
        ("12%", "<answer>0.12</answer>", 1),
        ("5 m", "<answer>500 cm</answer>", 1),
        ("5 m", "<answer>5 kg</answer>", 0),
        ("7", "<answer>7 or 8</answer>", 0),
        ("7", "<answer>nan</answer>", 0),
        ("7", "<answer>1e999</answer>", 0),
        ("7", "<answer>__import__('os')</answer>", 0),
        ("7", "<think>7</think>", 0),
        ("7", "", 0),
        ("2023", "<answer>2023.1</answer>", 0),
    ],
)
def test_numeric(rollout, gold, text, score):
    assert build(Reward, "numeric")(rollout(gold, text)) == score


def test_numeric_tolerance_and_broken_gold(rollout):
    close = build(Reward, {"name": "numeric", "rel_tol": 0.01})
    assert close(rollout(100, "<answer>101</answer>")) == 1
    assert close(rollout(100, "<answer>101.01</answer>")) == 0
    with pytest.raises(ValueError, match="not a number"):
        close(rollout("seven", "<answer>7</answer>"))


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>a</think><answer>7</answer>", 1),
        ("<think>a\nb</think>\n\n<answer>7</answer>\n", 1),
        ("<answer>7</answer><think>a</think>", 0),
        ("<think>a</think><answer>7</answer><answer>8</answer>", 0),
        ("<think>a</think><think>b</think><answer>7</answer>", 0),
        ("<think></think><answer>7</answer>", 0),
        ("<think>a</think><answer>...</answer>", 0),
        ("<think>a</think> so <answer>7</answer>", 0),
        ("<think>a</think><answer>7</answer> bye", 0),
        ("<think>a<answer>7</answer></think>", 0),
        ("", 0),
        ("7", 0),
    ],
)
def test_tag_format(rollout, text, score):
    assert build(Reward, "tag_format")(rollout("7", text)) == score


def test_tag_format_other_tags(rollout):
    assert build(Reward, {"name": "tag_format", "tags": ["answer"]})(rollout("7", "<answer>7</answer>")) == 1
