"""VerIF's checker programs: the share that passes; a broken program is a fault of the row."""

import pytest
from vlrl_rewards.code.checkers import Checkers

from vlrl.plugins.scoring import GoldError, Response
from vlrl.types import Row

SHORT = "def check_following(instruction, response):\n    return len(response.split()) <= 3\n"
ASKED = "def check_following(instruction, response):\n    return instruction.split()[-1] in response\n"
CRASHES = "def check_following(instruction, response):\n    return response[999] == 'x'\n"
ENDLESS = "def check_following(instruction, response):\n    while True:\n        pass\n"
ROW = Row("a", "name a fig", None)


def pays(text, *programs):
    return Checkers(seconds=1.0).grade(Response(text), {"functions": list(programs)}, ROW).score


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a fig", 1.0),
        ("<think>one two three four fig</think>a fig", 1.0),  # thoughts are not read
        ("a plum", 0.5),
        ("one two three four", 0.0),
        ("", 0.5),  # no word is at most three words, as in the release
        ("check_following = lambda *a: True\nexit(0) fig", 0.5),  # text is no program
    ],
)
def test_the_share_of_programs_that_pass(text, wanted):
    assert pays(text, SHORT, ASKED) == wanted


@pytest.mark.needs("bwrap")
def test_an_exception_and_no_end_are_not_passed():
    assert pays("a fig", SHORT, CRASHES) == 0.5
    assert pays("a fig", ENDLESS) == 0.0


def test_without_programs_the_rules_are_kept():
    assert pays("anything") == 1.0


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("broken", ["def check_following(", "import not_there\n" + SHORT])
def test_a_program_that_does_not_load_is_no_verdict(broken):
    with pytest.raises(GoldError, match="cannot be loaded"):
        pays("a fig", broken)


@pytest.mark.parametrize("gold", [None, SHORT, {}, {"functions": [1]}])
def test_another_gold_answer_is_refused(gold):
    with pytest.raises(GoldError, match="functions"):
        Checkers().grade(Response("a fig"), gold, ROW)
