"""EFAGen: the unit tests of an abstraction, one fault at a time."""

import pytest
from vlrl_data.generators.downstream import GenAbstraction
from vlrl_rewards.code.abstractions import TESTS, Abstraction, passed_tests, variants

from vlrl.types import Prompt, Rollout

pytestmark = pytest.mark.needs("bwrap")
GOOD = """def original():
    return 3

def sample(seed):
    return seed + 5

def render(x):
    return f"What is twice {x}?"

def solve(x):
    return 2 * x"""


def passed(program):
    found = passed_tests(program, "What is twice 3?", "6", "bubblewrap", 4.0)
    return [name for name in TESTS if found[name]]


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("", "", []),
        ("def solve", "def other", list(TESTS)),
        ("return 2 * x", "return 2 * x / 0", list(TESTS[1:])),
        ("seed + 5", "7", ["has_dof"]),
        (
            "return 2 * x",
            "return id(object()) and __import__('random').random()",
            ["single_valued", "matches_original"],
        ),
        ("return 3", "return 4", ["matches_original"]),
        ("twice {x}", "two times {x}", ["matches_original"]),
    ],
)
def test_each_fault_fails_its_test(old, new, missing):
    assert passed(GOOD.replace(old, new) if old else GOOD) == [name for name in TESTS if name not in missing]


def test_variants_are_solved():
    assert variants(GOOD, [0, 1]) == [("What is twice 5?", "10"), ("What is twice 6?", "12")]


def test_the_reward_of_the_demonstration_and_of_less():
    row = GenAbstraction().row(3)
    for text, whole, share in (
        (row.target, 1.0, 1.0),
        (row.target.replace("def solve", "def s"), 0.0, 0.0),
        ("", 0.0, 0.0),
    ):
        rollout = Rollout(Prompt(row, ()), [1], text=text)
        assert (Abstraction()(rollout), Abstraction(partial=True)(rollout)) == (whole, share)
