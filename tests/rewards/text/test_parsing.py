"""Thinking is never read, the last commitment counts, guesses are no answer."""

import pytest
from vlrl_rewards.parsing import (
    answer_or_text,
    answer_tags,
    boxes_in,
    committed,
    final_answer,
    last_answer,
    strip_thinking,
    visible,
)

from vlrl.plugins.scoring import Response, Unread


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("<think>5</think> 6", "6"),
        ("5 </think> 6", "6"),
        ("<think>5", ""),
        ("<think>a<think>b</think>c</think>d", "d"),
        ("a<think>b</think>c<think>d", "a c"),
        ("<THINK>5</Think>6", "6"),
        ("<reasoning>5</reasoning>6", "6"),
        ("[THINK]5[/THINK]6", "6"),
        ("◁think▷5◁/think▷6", "6"),
        ("<!-- 5 -->6", "6"),
        ("<think>x</think></think>6", "6"),
        ("", ""),
    ],
)
def test_thinking_is_blanked_and_offsets_stay(text, seen):
    assert strip_thinking(text).split() == seen.split()
    assert len(visible(text)) == len(text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>6</answer>", "6"),
        ("<answer> 6 </answer>", "6"),
        ("<think><answer>5</answer></think><answer>6</answer>", "6"),
        ("<think><answer>5</answer>", ""),
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"<answer>\boxed{3}</answer>", "3"),
        (r"first \boxed{3}. Wait, that is wrong: \boxed{4}", "4"),
        (r"I get \boxed{3} and then \boxed{4}", "4"),
        (r"\fbox{7}", "7"),
        (r"\boxed 7", "7"),
        ("The final answer is 12.", "12"),
        ("The answer is 3.5. Done.", "3.5"),
        ("**Answer:** 42", "42"),
        ("Answer:\n\n42", "42"),
        ("work\n#### 18", "18"),
        ("答案是：8", "8"),
        (r"The answer is $\boxed{9}$.", "9"),
        ("The final answer is: **B**", "B"),
        ("<answer>6", "6"),
        ("no commitment 7", ""),
        ("", ""),
        ("<answer></answer>", ""),
        (r"\boxed{}", ""),
        (r"\boxed{1} \boxed{2}", "1, 2"),
        (r"$\boxed{1}$ or $\boxed{2}$", "1, 2"),
        (r"Case one: \boxed{1}. Case two: \boxed{2}. Case three: \boxed{3}.", ""),
        (r"It is \boxed{1} ... it could be \boxed{2}", ""),
        (r"Step 1: \boxed{1}. Step 2: \boxed{2}. Therefore the result is \boxed{3}.", "3"),
        (r"\boxed{5}" + r" and \boxed{5}" * 9, ""),
        (r"It is \boxed{5}. Final answer: \boxed{5}", "5"),
    ],
)
def test_last_answer(text, answer):
    assert last_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("6", "6"),
        (" a plain word \n", "a plain word"),
        ("<think>7</think> 6", "6"),
        ("<answer>6</answer>", "6"),
        (r"so \boxed{6}", "6"),
        ("The answer is 6.", "6"),
        ("<answer>6</answer> <answer>7</answer>", ""),
        (r"It is \boxed{1} ... it could be \boxed{2}", ""),
        ("<answer></answer>", ""),
        ("6 <answer>", ""),
        ("<think>6", ""),
        ("", ""),
    ],
)
def test_answer_or_text_is_the_commitment_or_else_the_visible_text(text, answer):
    assert answer_or_text(text) == answer
    if answer:
        assert final_answer(Response(text)).text == answer
    else:
        with pytest.raises(Unread):
            final_answer(Response(text))


def test_span_points_into_the_response():
    text = r"<think>\boxed{1}</think> thus \boxed{ 22 }"
    found = committed(text)
    assert found is not None and text[found.start : found.end] == "22" and found.route == "box"


def test_plausible_filters_phrases_only():
    text = r"\boxed{4}. So the answer is correct."
    assert last_answer(text) == "correct"
    found = committed(text, plausible=lambda s: s.strip().isdigit())
    assert found is not None and found.text == "4"


@pytest.mark.parametrize(
    "bomb",
    [
        "<think>" * 50_000,
        r"\boxed{" * 50_000,
        "<answer>" * 50_000,
        "{" * 200_000,
        "the answer is " * 20_000,
        "\\" * 100_000,
    ],
)
def test_long_text_is_read_in_linear_time(bomb, timeout_seconds=20.0):
    import time

    start = time.perf_counter()
    committed(bomb)
    assert time.perf_counter() - start < timeout_seconds


def test_nested_boxes_and_tags():
    assert [r"\boxed{a \boxed{b}}"[cs:ce] for _, _, cs, ce in boxes_in(r"\boxed{a \boxed{b}}")] == [
        r"a \boxed{b}"
    ]
    text = "<answer><answer>5</answer></answer>"
    assert [text[a:b] for a, b in answer_tags(text)] == ["5"]
