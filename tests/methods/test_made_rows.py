"""Rows made of rows: masked and shuffled working, choices of responses, captions; what is kept because it can
be checked; their rewards."""

from __future__ import annotations

import re

import pytest

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward, Select
from vlrl.types import Prompt, Rollout, Row

WORK = Row("w", "27+5+3=", 35, target="<think>27+5=32\n32+3=35\nso 35</think><answer>35</answer>")


def chosen(name, rows, **fields):
    made = build(Select, {"name": name, **fields})(rows)
    assert len(made) == len(list(made))
    return list(made)


def reward(name, text, answer, meta=None, **fields):
    row = Row("r", "?", answer, meta=meta or {})
    return build(Reward, {"name": name, **fields})(Rollout(Prompt(row, ()), [1], text))


def test_masked_working_can_be_put_back():
    (row,) = chosen("mr_rlvr.masked_steps", [WORK, Row("short", "?", target="7")], blanks=3)
    shown = row.question.splitlines()[2:]
    assert (
        row.id == "w/fill"
        and row.task == "fill"
        and row.question.startswith("27+5+3=\n")
        and len(row.answer) == 3
    )
    restored = re.sub(r"\[(\d)\]", lambda blank: row.answer[int(blank[1]) - 1], "\n".join(shown))
    assert restored == "27+5=32\n32+3=35\nso 35" and shown != restored.splitlines()
    assert reward("filled", row.target, row.answer) == 1.0
    assert [r.question for r in chosen("mr_rlvr.masked_steps", [WORK], blanks=3, seed=1)] != [row.question]
    assert chosen("mr_rlvr.masked_steps", [Row("f", "?", target="$a+b$ is $c$")])[0].answer == [
        "$a+b$",
        "$c$",
    ]


def test_shuffled_steps_can_be_ordered():
    (row,) = chosen(
        "mr_rlvr.shuffled_steps", [WORK, Row("few", "?", target="a\nb"), Row("twice", "?", target="a\nb\na")]
    )
    steps = [line.partition(") ")[2] for line in row.question.splitlines()[2:]]
    assert [steps[number - 1] for number in row.answer] == ["27+5=32", "32+3=35", "so 35"] and row.answer != [
        1,
        2,
        3,
    ]
    assert reward("order", row.target, row.answer, metric="positions") == 1.0
    assert (
        row.task == "reorder"
        and len(chosen("mr_rlvr.shuffled_steps", [Row("c", "?", target="a1b2c3")], split="(?=[abc])")) == 1
    )


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<answer>5; 32</answer>", 1.0),
        ("<answer>5.0 ; $ 32 $</answer>", 1.0),
        ("<answer>5; 31</answer>", 0.5),
        ("<answer>32; 5</answer>", 0.0),
        ("<answer>5</answer>", 0.5),
        ("<answer>5; 32; 1; 2</answer>", 0.5),  # more parts than blanks
        ("<answer>5/0; x</answer>", 0.0),
        ("32 5", 0.0),
        ("", 0.0),
    ],
)
def test_blanks(text, score):
    assert reward("filled", text, ["5", "32"]) == score


@pytest.mark.parametrize(
    ("name", "gold"), [("filled", "5"), ("filled", []), ("places", None), ("places", [""])]
)
def test_broken_gold_answers_raise(name, gold):
    with pytest.raises(ValueError, match="must be a list"):
        reward(name, "<answer>5</answer>", gold)


@pytest.mark.parametrize(
    ("text", "fields", "score"),
    [
        ("<answer>a.py, b.py</answer>", {}, 1.0),
        ("<answer>a.py\nc.py</answer>", {}, 0.5),  # P = R = 1/2
        ("<answer>- `a.py`</answer>", {}, 2 / 3),  # P = 1, R = 1/2
        ("<answer>a.py</answer>", {"beta": 2.0}, 5 * 0.5 / 4.5),
        ("<answer>a.py, b.py, made_up.py</answer>", {}, 0.0),  # does not exist
        ("<answer>a.py, b.py, made_up.py</answer>", {"known": ""}, 0.8),  # P = 2/3, R = 1
        ("<answer>c.py</answer>", {}, 0.0),
        ("I cannot tell", {}, 0.0),
        ("", {}, 0.0),
    ],
)
def test_places(text, fields, score):
    assert reward(
        "places", text, ["a.py", "b.py"], {"known": ["a.py", "b.py", "c.py"]}, **fields
    ) == pytest.approx(score)


def test_better_response():
    rows = [Row(f"p{i}", "Write.", meta={"chosen": "good", "rejected": "bad"}) for i in range(40)]
    made = chosen("vmr", [*rows, Row("none", "?"), Row("tie", "?", meta={"chosen": "a", "rejected": " a"})])
    assert len(made) == 40 and 10 < sum(row.answer == "A" for row in made) < 30
    for row in made:
        assert (
            row.choices["AB".index(row.answer)] == "good"
            and row.task == "choice"
            and reward_of(row, row.target) == 1.0
        )
    both = chosen("vmr", rows[:3], both=True)
    assert [row.answer for row in both[::2]] == [
        {"A": "B", "B": "A"}[row.answer] for row in both[1::2]
    ] and len({row.id for row in both}) == 6


def reward_of(row, text):
    return build(Reward, {"name": "mcq"})(Rollout(Prompt(row, ()), [1], text))


def test_captions():
    rows = [Row("a", "How many?", meta={"caption": "three cups"}), Row("b", "?")]
    assert [row.question for row in chosen("infi_mmr", rows)] == ["The picture shows: three cups\nHow many?"]


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        (Row("", "?", "B", choices=("x", "y")), True),
        (Row("", "?", "(b)", choices=("x", "y")), True),
        (Row("", "?", "Y ", choices=("x", "y")), True),
        (Row("", "?", "C", choices=("x", "y")), False),
        (Row("", "?", "z", choices=("x", "y")), False),
        (Row("", "?", "one two three"), True),
        (Row("", "?", "one two three four"), False),
        (Row("", "?", " "), False),
        (Row("", "?", 35), True),
        (Row("", "?", None), False),
    ],
)
def test_checkable(row, kept):
    assert bool(chosen("checkable", [row], words=3)) is kept


@pytest.mark.parametrize(
    ("question", "answer", "rule"),
    [
        ("Find x. A) 1 B) 2 C) 3 D) 4", "3", "choice"),
        ("Which? 1. a 2. b 3. c 4. d", "2", "choice"),
        ("ABCD is a square of side s. Find its area.", "s^2", None),
        ("(1) Find a. (2) Find b.", "3", "parts"),
        ("(I) Find a. (II) Find b.", "3", "parts"),
        ("Prove that x > 0.", "1", "proof"),
        ("Is 7 prime?", "7", "yes_no"),
        ("State it.", "No, it is not", "yes_no"),
        ("Nothing is known of x.", "5", None),
        ("Say which.", "True", "true_false"),
        ("See https://example.org", "5", "link"),
        ("What is 2+2?", "4", None),
    ],
)
def test_open_ended(question, answer, rule):
    row = Row("", question, answer)
    assert bool(chosen("open_ended", [row])) is (rule is None)
    if rule:
        assert chosen("open_ended", [row], rules=[rule]) == []


def test_between():
    rows = [Row(str(value), "?", meta={"difficulty": value}) for value in (4.5, 5, 9.0, "hard", None)] + [
        Row("none", "?")
    ]
    assert [row.id for row in chosen("between", rows, low=5)] == ["5", "9.0"]
    assert [row.id for row in chosen("between", rows, high=5)] == ["4.5", "5"]


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "mr_rlvr.masked_steps", "blanks": 0},
        {"name": "mr_rlvr.masked_steps", "span": "("},
        {"name": "mr_rlvr.shuffled_steps", "min_steps": 1},
        {"name": "vmr", "worse": "chosen"},
        {"name": "infi_mmr", "text": "no field"},
        {"name": "checkable", "words": 0},
        {"name": "open_ended", "rules": ["luck"]},
        {"name": "between", "low": 2, "high": 1},
    ],
)
def test_bad_settings(spec):
    with pytest.raises(ConfigError, match="select"):
        build(Select, spec)
