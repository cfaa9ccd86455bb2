"""What measures trained reward models: the labels of steps, the pairs, the bootstrap."""

from __future__ import annotations

import pytest

from benchmarks.graded_answers import TASKS, right_steps, right_sums
from benchmarks.reward_models import form, interval, pairs_won, records, steps_won, verdicts_right

QUESTION = "What is 3 plus 0 plus 4?"


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("3 + 0 = 3\n3 + 4 = 7", [1, 1]),
        ("4 + 3 = 7\n\n0 + 7 = 7\n", [1, 1]),
        ("3 + 0 + 4 = 7", [1]),
        ("3 + 0 + 4 = 8\n8 + 4 = 12", [0]),  # nothing behind the first wrong step
        ("3 + 4 = 7\n7 + 4 = 11", [1, 0]),  # the 4 is used up
        ("3 + 3 = 6", [0]),  # one 3 alone
        ("The answer is 7", [0]),
        ("", []),
    ],
)
def test_a_step_is_a_true_sum_of_numbers_that_are_left(text, labels):
    assert [label for _, label in right_sums(QUESTION, text)] == labels


def test_steps_of_the_lab_are_its_very_lines():
    assert [label for _, label in right_steps("1+2+3=", "1+2=3\n3+3=6\n<answer>6</answer>")] == [1, 1, 1]
    assert [label for _, label in right_steps("1+2+3=", "2+1=3\n3+3=6")] == [0]


ANSWERS = [
    {"question": "a", "text": "1 + 2 = 3", "right": True, "gold": "3"},
    {"question": "a", "text": "1 + 2 = 4", "right": False, "gold": "3"},
    {"question": "a", "text": "Four.", "right": False, "gold": "3"},
    {"question": "b", "text": "1 + 1 = 2", "right": True, "gold": "2"},
]


def test_pairs_are_of_one_question_and_a_tie_is_not_won():
    scores = [0.5, 0.5, 0.1, 0.0]
    assert pairs_won(ANSWERS, scores, alike=False) == {"a": [0.0, 1.0], "b": []}
    assert pairs_won(ANSWERS, scores, alike=True) == {"a": [0.0], "b": []}
    assert form(ANSWERS[0]) == form(ANSWERS[1]) == "n + n = n" != form(ANSWERS[2])


def test_verdicts_and_steps():
    task = TASKS["smollm2"]
    right, wanted = verdicts_right(task, "judge", ANSWERS, [0.9, 0.6, 0.2, 0.4], [])
    assert right == {"a": [1.0, 0.0, 1.0], "b": [0.0]} and wanted == {"a": [1.0, 0.0, 0.0], "b": [1.0]}
    one = [{"question": QUESTION, "text": "3 + 4 = 7\n7 + 4 = 11\n1 + 1 = 2", "right": False}]
    right, wanted = verdicts_right(task, "process", one, [-1.0], [[0.5, 0.5, 0.5]])
    assert right == {QUESTION: [1.0, 0.0]} and wanted == {QUESTION: [1.0, 0.0]}


def test_pairs_of_steps_are_of_one_question_and_place():
    """First steps: right 0.9 and 0.4, wrong 0.5; second ones: wrong 0.6 alone. What stands behind a wrong
    step is not looked at."""
    texts = ("3 + 0 = 3\n3 + 4 = 8\n8 + 1 = 9", "3 + 4 = 7", "3 + 4 = 8\n0 + 8 = 8")
    made = [{"question": QUESTION, "text": text, "right": False} for text in texts]
    known = steps_won(TASKS["smollm2"], made, [[0.9, 0.6, 0.1], [0.4], [0.5, 0.2]])
    assert known == {QUESTION: [1.0, 0.0]}


def test_the_interval_is_over_sums():
    assert interval({"1 plus 12": [1.0], "12 plus 1": [0.0]}) == "0.500 (0.500 to 0.500, n 2)"  # one sum
    assert interval({"a": [1.0] * 9, "b": [0.0] * 9}) == "0.500 (0.000 to 1.000, n 18)"  # two draws of two
    assert interval({str(n): [1.0] for n in range(5)}) == "1.000 (1.000 to 1.000, n 5)"
    assert interval({"a": []}) == "none"
    low, high = (
        interval({str(n): [float(n % 2)] for n in range(400)}).split("(")[1].split(",")[0].split(" to ")
    )
    assert 0.44 < float(low) < 0.46 and 0.54 < float(high) < 0.56  # 1.96 sqrt(1/4 / 400) = 0.049


def test_records_of_each_kind():
    task = TASKS["smollm2"]
    assert list(records(task, "scalar", ANSWERS)) == [
        {"prompt": "a", "chosen": "1 + 2 = 3", "rejected": "1 + 2 = 4"}
    ]
    steps = next(
        iter(records(task, "process", [{"question": QUESTION, "text": "3 + 4 = 8", "right": False}]))
    )
    assert steps == {"question": QUESTION, "steps": [{"step": "3 + 4 = 8", "score": 0.0}]}
    (judged, *_) = records(task, "referee", ANSWERS)
    assert judged == {"question": "a", "answer": "3", "meta": {"response": "1 + 2 = 3", "label": True}}
