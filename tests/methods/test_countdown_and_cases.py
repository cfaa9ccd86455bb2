"""Countdown's traces and check; SAGA's detection of wrong programs."""

import random
import re

import pytest
from vlrl_data.generators.countdown import GenCountdown, failures, moves, solutions, told
from vlrl_rewards.code.test_cases import CaseDetection, cases_in, caught, suite_scores
from vlrl_rewards.puzzles.countdown import Countdown, reaches

from vlrl.types import Prompt, Rollout, Row


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("3+4=7, 7*2=14", True),
        ("2*7=14, 3+4=7", False),  # 7 is not there yet
        ("3+4=7", False),  # 2 is not used
        ("3+4=8, 8*2=16", False),
        ("3+4=7,7*2=14", True),
        ("4*2=8, 8+3=11", False),
        ("", False),
        ("3+4=7, 7*2=14, 14+0=14", False),
    ],
)
def test_steps_must_use_every_number_once(text, right):
    assert reaches(text, [3, 4, 2], 14) is right


@pytest.mark.parametrize("backtracks", [0, 1, 4])
def test_a_trace_fails_as_often_as_it_is_told(backtracks):
    source = GenCountdown(backtracks=backtracks, count=20)
    for row in source():
        assert row.target.count("back.") == backtracks
        for tried in re.findall(r"([\d+*=, -]+): not", row.target):
            assert not reaches(tried.strip(), row.meta["numbers"], row.meta["goal"])
        assert Countdown()(Rollout(Prompt(row, ()), [1], text=row.target)) == 1.0


def test_shuffled_traces_try_other_numbers():
    rows = list(GenCountdown(backtracks=3, shuffled=True, count=10)())
    assert any(
        set(map(int, re.findall(r"\d+", row.target.partition(":")[0]))) - set(row.meta["numbers"])
        for row in rows
    )
    assert all(Countdown()(Rollout(Prompt(row, ()), [1], text=row.target)) == 1.0 for row in rows)


def test_search():
    assert len(moves([2, 5])) == 3 and ((5, "-", 2, 3), [3]) in moves([2, 5])
    assert told(next(solutions([2, 5], 3))) == "5-2=3" and not list(solutions([2, 5], 4))
    assert told(next(failures([2, 5], 3, random.Random(0)))) in ("2+5=7", "2*5=10")


def test_cases_are_read_line_by_line():
    assert cases_in("-3\n0\nf(1)\n\n1, [2]\n0", 8) == [[-3], [0], [1, [2]]] and cases_in("1\n2\n3", 2) == [
        [1],
        [2],
    ]


def test_suites_by_hand():
    assert suite_scores([[True, True], [True, False]]) == {"detection_rate": 0.75, "verifier_accuracy": 0.5}
    assert suite_scores([]) == {"detection_rate": 0.0, "verifier_accuracy": 0.0}


@pytest.mark.needs("bwrap")
def test_a_case_catches_what_differs_on_it():
    right, wrong = "def f(x):\n    return abs(x)", ["def f(x):\n    return x", "def f(x):\n    return -x"]
    assert caught([[-3]], right, wrong, "bubblewrap", 2.0) == ([True, False], 1)
    assert caught([[-3], [4], ["a"]], right, wrong, "bubblewrap", 2.0) == ([True, True], 2)
    assert caught([["a"]], right, wrong, "bubblewrap", 2.0) == ([False, False], 0)
    row = Row("1", "?", meta={"right": right, "wrong": wrong})
    for text, paid in (("<answer>-3</answer>", 0.5), ("<answer>-3\n4</answer>", 1.0), ("", 0.0)):
        assert CaseDetection()(Rollout(Prompt(row, ()), [1], text=text)) == paid
