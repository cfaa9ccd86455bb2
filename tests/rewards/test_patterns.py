"""No pattern of the package takes cubic time, and no text that repeats a part holds a verifier up."""

import random
import re
import time

import pytest
from vlrl_rewards import verify
from vlrl_rewards.audit import patterns
from vlrl_rewards.math import judge
from vlrl_rewards.runs import MAX_SAME, shortened

PATTERNS = patterns.compiled()
SECONDS = 2.0  # a pattern that takes the square of 1,500 characters takes 0.5


def slow(pattern, texts, seconds=SECONDS):
    """The texts on which a pattern takes more than `seconds` of processor time."""
    found = []
    for text in texts:
        started = time.thread_time()
        for _ in pattern.finditer(text):
            pass
        found += [text] if time.thread_time() - started > seconds else []
    return found


def test_no_pattern_is_cubic():
    draw = random.Random(5)
    for name, pattern in PATTERNS.items():
        texts = list(patterns.attacks(pattern, draw, 1500))
        assert not slow(pattern, draw.sample(texts, min(4, len(texts)))), name


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
def test_no_pattern_is_cubic_on_any_attack(name):
    assert not slow(PATTERNS[name], patterns.attacks(PATTERNS[name], random.Random(name), 1500))


def test_a_cubic_pattern_is_found():
    assert len(PATTERNS) > 250
    cubic = re.compile(r"\s*,?\s*(?:because|since)")
    assert any(text.count(" ") > 500 for text in patterns.attacks(cubic, random.Random(0), 600))
    assert slow(cubic, [" " * 600], seconds=0.1) and not slow(re.compile(r"\s+because"), [" " * 600], 0.1)
    behind = re.compile(r"the answer is (?:ab)*c")
    assert any(
        text.startswith("the answer is ababab") for text in patterns.attacks(behind, random.Random(0), 90)
    )


@pytest.fixture
def without_the_library(monkeypatch):
    monkeypatch.setattr(judge, "compare", lambda gold, said: (None, "not asked"))


STARTS = ("", "7", "answer The answer is", "<answer>", r"\boxed{", "x = ", "B", "yes", "(", "1 ")
PARTS = (
    " ", "\n", ",", ".", "!", ":", "*", "#", "1", "1+", "1 cm ", "1 or ", "the answer is ", "Answer: ",
    "答案", "答案是", "a ", "not ", "((", "{", r"\frac{1}{", r"\text{a}", "H2 + ", "\u200b", "B, ", "no, ",
    "<answer>", "- ",
)  # fmt: skip


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("kind", "gold", "choices"),
    [("math", "7", None), ("math", "7 cm", None), ("numeric", "7", None), ("mcq", "B", ["a", "7 cm", "yes"]),
     ("yes_no", "yes", None), ("text", "yes", None)],
)  # fmt: skip
def test_repeated_parts_are_read_in_time(without_the_library, kind, gold, choices):
    draw = random.Random(kind)
    for part in PARTS:
        text = draw.choice(STARTS) + part * (16_000 // len(part)) + draw.choice(("x.", "!", ""))
        started = time.thread_time()
        verify(gold, text, kind, choices)
        assert time.thread_time() - started < SECONDS, text[:40]


@pytest.mark.parametrize("gold", ["7", "7 cm", "x + 1", "(1, 2)"])
@pytest.mark.parametrize(
    "form", ["1+{}", "({})", "-{}", r"\frac{{1}}{{{}}}", "x^{{{}}}", "{}!", "{}, 1", "[{}]"]
)
def test_deep_answers_are_no_answers(without_the_library, form, gold):
    for depth in (30, 600, 1900):
        text = "1"
        for _ in range(min(depth, 3800 // len(form))):
            text = form.format(text)
        for response in (text, f"<answer>{text}</answer>", f"<answer>{text} cm</answer>"):
            assert verify(gold, response, "math").score in (0.0, 1.0)


def test_long_runs_are_short_and_spans_stay():
    text = "a" + " " * 50 + "b" + "-" * 101 + "\n" * 30 + "c"
    short, place = shortened(text)
    assert short == "a" + " " * 8 + "b" + "-" * (MAX_SAME + 1) + "\n\n" + "c"
    for char in "abc":
        assert text[place(short.index(char))] == char
    same, place = shortened("a  b")
    assert same == "a  b" and place(3) == 3
    padded = "<think>" + "z" * 300 + "</think>" + " " * 40 + "The answer is" + "\n" * 20 + "17."
    verdict = verify("17", padded, "math")
    assert verdict.correct and padded[slice(*verdict.span)] == "17"


def test_padding_hides_no_retraction():
    for pad in (" " * 400, "\n" * 400, "." * 400):
        assert not verify("17", f"<answer>17</answer>{pad} is wrong", "math").correct
        assert not verify("B", f"<answer>B</answer>{pad} is wrong", "mcq").correct
